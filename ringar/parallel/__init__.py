"""Models that are split over ranks, cut into modules, run in wavefronts, or trained by scans."""
"""Models that are split over ranks, cut into modules, trained through a scan, or scheduled."""

# Importing the function `split` last hides the module of that name, ringar.parallel.split.
from ringar.parallel import scan, scheduled
"""Models that are split or partitioned over ranks, cut into modules, or trained through a scan."""

# Importing a function `split` or `partition` last hides the module of that name.
from ringar.parallel import scan
from ringar.parallel.conversion import merge, split
from ringar.parallel.partition import partition
from ringar.parallel.partitioned.ways import tile
from ringar.parallel.pipeline import Pipelined
from ringar.parallel.wavefront import Wavefront
from ringar.sharding.grid import Grid
from ringar.sharding.lineage import own

__all__ = ["Grid", "Pipelined", "Wavefront", "merge", "own", "scan", "split"]
__all__ = ["Grid", "Pipelined", "merge", "own", "scan", "scheduled", "split"]
"""Models that are split over ranks, cut into modules or along edges, or trained by a scan."""

# Importing the function `split` last hides the module of that name, ringar.parallel.split.
from ringar.parallel import scan, sparse
from ringar.parallel.conversion import merge, split
from ringar.parallel.pipeline import Pipelined
from ringar.parallel.sparse.net import SparseNet
from ringar.sharding.grid import Grid
from ringar.sharding.lineage import own

__all__ = ["Grid", "Pipelined", "SparseNet", "merge", "own", "scan", "sparse", "split"]
from ringar.parallel.pipeline import Pipelined, Synthesizer
from ringar.parallel.truncated import SyntheticBPTT
from ringar.sharding.grid import Grid
from ringar.sharding.lineage import own

__all__ = ["Grid", "Pipelined", "SyntheticBPTT", "Synthesizer", "merge", "own", "scan", "split"]
__all__ = ["Grid", "Pipelined", "merge", "own", "partition", "scan", "split", "tile"]
