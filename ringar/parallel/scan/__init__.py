"""Back-propagation as a parallel scan (Wang, Bai and Pekhimenko, BPPSA, MLSys 2020).

`scan` is the op on dense matrices, `scan_across` the same for matrices on several ranks, and
`Sequential` a feed-forward net with sparse Jacobians. Recurrent layers are in `ringar.layers`.
"""

from typing import TYPE_CHECKING, Any

from ringar.parallel.scan.across import scan_across
from ringar.parallel.scan.chain import scan

if TYPE_CHECKING:
    from ringar.parallel.scan.sequential import Sequential

__all__ = ["Sequential", "scan", "scan_across"]


def __getattr__(name: str) -> Any:
    # Loaded at first use, since it needs SciPy.
    if name == "Sequential":
        from ringar.parallel.scan.sequential import Sequential

        return Sequential
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
