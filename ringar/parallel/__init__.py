"""Models that are split over ranks, cut into modules, or trained through a scan."""

import importlib
from typing import TYPE_CHECKING, Any

# The function `split` comes after the module of that name, ringar.parallel.split, is loaded.
from ringar.parallel.conversion import merge, split
from ringar.parallel.grid import Grid
from ringar.parallel.lineage import own

if TYPE_CHECKING:
    from ringar.parallel import scan
    from ringar.parallel.pipeline import Pipelined

__all__ = ["Grid", "Pipelined", "merge", "own", "scan", "split"]


def __getattr__(name: str) -> Any:
    # When they are first used: Pipelined needs ringar.keras, which needs modules of this package.
    if name == "Pipelined":
        from ringar.parallel.pipeline import Pipelined

        return Pipelined
    if name == "scan":
        return importlib.import_module("ringar.parallel.scan")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
