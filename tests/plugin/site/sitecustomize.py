"""Hide scikit-learn and Matplotlib from Keras, in every Python that finds this file first.

Keras imports both if they are installed, for wrappers and pictures that no test uses. That takes a
third of the start of a rank in a test's job. Other modules can import them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

HIDDEN = ("matplotlib", "sklearn")


class Hiding(MetaPathFinder):
    """Finds nothing, and says so where Keras looks for a package that is hidden from it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        keras = sys.modules.get("keras")
        if name in HIDDEN and keras and getattr(keras.__spec__, "_initializing", False):
            raise ModuleNotFoundError(f"{name} is hidden from Keras by {__file__}", name=name)
        return None


sys.meta_path.insert(0, Hiding())
