"""Models that are split or partitioned over ranks, cut into modules, or trained through a scan."""

# Importing a function `split` or `partition` last hides the module of that name.
from ringar.parallel import scan
from ringar.parallel.conversion import merge, split
from ringar.parallel.partition import partition
from ringar.parallel.partitioned.ways import tile
from ringar.parallel.pipeline import Pipelined
from ringar.sharding.grid import Grid
from ringar.sharding.lineage import own

__all__ = ["Grid", "Pipelined", "merge", "own", "partition", "scan", "split", "tile"]
