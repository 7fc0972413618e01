"""Models that are split over ranks, or cut into modules, in a grid with data parallelism."""

from typing import TYPE_CHECKING, Any

# The function `split` comes after the module of that name, ringar.parallel.split, is loaded.
from ringar.parallel.conversion import merge, split
from ringar.parallel.grid import Grid
from ringar.parallel.lineage import own

if TYPE_CHECKING:
    from ringar.parallel.pipeline import Pipelined

__all__ = ["Grid", "Pipelined", "merge", "own", "split"]


def __getattr__(name: str) -> Any:
    # When it is first used: it needs ringar.keras, which needs modules of this package.
    if name == "Pipelined":
        from ringar.parallel.pipeline import Pipelined

        return Pipelined
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
