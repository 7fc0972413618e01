"""Adapters of ringar and of the libraries that it is compared with, one small file each.

An adapter module has

- `TITLE`: its name in tables;
- `REQUIREMENTS`: what pip installs into an environment of its own; empty: ringar's environment;
- `command(environment, ranks, program)`: the command line that starts `program` on that many ranks
  of this machine, given the environment's folder;
- `class Peer`: made once on every rank, with `rank`, `size`, `barrier()`, and a method for each
  collective of `benchmarks.harness.definitions` that it has, such as `allreduce(array)`. The method
  returns a function; each call of it runs the collective on `array` and returns the result;
- `IN_PLACE = True`, if a call overwrites `array`, which then is given anew before it is checked;
- `COMMUNICATES = False`, if its results mean nothing and only its times count.

A file of that form elsewhere is a peer, too: `--peers openmpi,./my_library.py`.

The harness names those that cannot be installed or started, or lack the collective, and goes on.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from pathlib import Path
from types import ModuleType


def names() -> list[str]:
    """Returns the names of all adapters; files named `*_peer.py` have shared parts."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in modules if not name.endswith("_peer"))


def load(name: str) -> ModuleType:
    """Imports the adapter of that name, or in the file of that name.

    Raises:
        ValueError: there is none.
    """
    path = Path(name)
    if path.suffix == ".py" and path.is_file():
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec and spec.loader:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    if name not in names():
        raise ValueError(f"peer must be a file or one of {', '.join(names())}. Received: {name}")
    return importlib.import_module(f"{__name__}.{name}")
