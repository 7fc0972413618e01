"""Models that are cut over ranks, or whose parts are trained at once.

Names of `ringar.research` are loaded when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

# Importing the function `partition` last hides the module of that name.
from ringar.parallel import scan
from ringar.parallel.conversion import merge, split
from ringar.parallel.partition import partition
from ringar.parallel.partitioned.ways import tile
from ringar.parallel.pipeline import Pipelined, Synthesizer
from ringar.sharding.grid import Grid
from ringar.sharding.lineage import own

if TYPE_CHECKING:
    from ringar.research import scheduled, sparse
    from ringar.research.sparse.net import SparseNet
    from ringar.research.synthetic.truncated import SyntheticBPTT
    from ringar.research.wavefront import Wavefront

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

#: The modules of names in `ringar.research`; None: the name is a module.
_RESEARCH = {
    "SparseNet": "sparse.net",
    "SyntheticBPTT": "synthetic.truncated",
    "Wavefront": "wavefront",
    "scheduled": None,
    "sparse": None,
}


def __getattr__(name: str) -> Any:
    if name not in _RESEARCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"ringar.research.{_RESEARCH[name] or name}")
    return module if _RESEARCH[name] is None else getattr(module, name)
