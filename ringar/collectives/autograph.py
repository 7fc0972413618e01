"""AutoGraph, which rewrites what a `tf.function` calls, and has nothing to rewrite in ringar.

TensorFlow, Keras and NumPy are on AutoGraph's list of code that stays as it is. Without a place on
it, each function of ringar that a step of the user calls would be parsed, rewritten, compiled and
imported while TensorFlow traces the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def sparing_ringar(original: Callable[..., bool]) -> Callable[..., bool]:
    """Add ringar to the code that stays as it is."""

    def is_allowlisted(o: Any, *args: Any, **kwargs: Any) -> bool:
        package = str(getattr(o, "__module__", "")).partition(".")[0]
        return package == "ringar" or original(o, *args, **kwargs)

    return is_allowlisted
