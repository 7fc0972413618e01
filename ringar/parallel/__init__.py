"""Models that are split over ranks, in a grid with data parallelism."""

# The function `split` comes after the module of that name, ringar.parallel.split, is loaded.
from ringar.parallel.conversion import merge, split
from ringar.parallel.grid import Grid
from ringar.parallel.lineage import own

__all__ = ["Grid", "merge", "own", "split"]
