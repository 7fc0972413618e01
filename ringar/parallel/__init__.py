"""Models that are cut over ranks, or whose parts are trained at once."""

# Importing a function `split` or `partition` last hides the module of that name.
from ringar.parallel import scan, scheduled, sparse
from ringar.parallel.conversion import merge, split
from ringar.parallel.partition import partition
from ringar.parallel.partitioned.ways import tile
from ringar.parallel.pipeline import Pipelined, Synthesizer
from ringar.parallel.sparse.net import SparseNet
from ringar.parallel.truncated import SyntheticBPTT
from ringar.parallel.wavefront import Wavefront
from ringar.sharding.grid import Grid
from ringar.sharding.lineage import own

__all__ = [
    "Grid",
    "Pipelined",
    "SparseNet",
    "SyntheticBPTT",
    "Synthesizer",
    "Wavefront",
    "merge",
    "own",
    "partition",
    "scan",
    "scheduled",
    "sparse",
    "split",
    "tile",
]
