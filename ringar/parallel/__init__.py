"""Models that are split over ranks, cut into modules, or trained through a scan."""

# Importing the function `split` last hides the module of that name, ringar.parallel.split.
from ringar.parallel import scan
from ringar.parallel.conversion import merge, split
from ringar.parallel.pipeline import Pipelined, Synthesizer
from ringar.parallel.truncated import SyntheticBPTT
from ringar.sharding.grid import Grid
from ringar.sharding.lineage import own

__all__ = ["Grid", "Pipelined", "SyntheticBPTT", "Synthesizer", "merge", "own", "scan", "split"]
