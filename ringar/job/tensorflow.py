"""TensorFlow, which a job has only if its program imports it.

The import takes seconds and hundreds of megabytes, and a job of NumPy or CuPy arrays does without.
So the modules that such a job needs do not import TensorFlow, and ask here whether it is there.
What TensorFlow has to know of the job waits here for it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType

_actions: dict[str, Callable[[], None]] = {}


def is_loaded() -> bool:
    """Return whether the program has imported TensorFlow."""
    return sys.modules.get("tensorflow") is not None


def load() -> ModuleType:
    """Import TensorFlow.

    Raises:
        ImportError: it is not installed; the message says what to do.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(
            "ringar needs TensorFlow 2.16 or later with Keras 3, found none. "
            "Install one, for example with: pip install tensorflow keras"
        ) from error
    module: ModuleType = tf
    return module


def is_eager() -> bool:
    """Return whether the code that runs now computes at once, and does not build a graph."""
    # Each collective asks, so this reads what `tf.executing_eagerly` returns, once it is there.
    running = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    if running is not None:
        return bool(running._thread_local_data.is_eager)
    # Without the function, TensorFlow is about to be imported.
    executing_eagerly = getattr(sys.modules.get("tensorflow"), "executing_eagerly", None)
    return executing_eagerly is None or bool(executing_eagerly())


def is_tensor(value: object) -> bool:
    """Return whether a value is a tensor or a variable of TensorFlow."""
    return is_loaded() and isinstance(value, (load().Tensor, load().Variable))


def when_loaded(name: str, action: Callable[[], None]) -> None:
    """Run an action now if TensorFlow is there, else as soon as the program has imported it.

    Args:
        name: names the action, which takes the place of a waiting one of that name.
        action: what to run. What it raises, the import raises.
    """
    if is_loaded():
        action()
    else:
        _actions[name] = action
        _watch_imports()


@functools.cache
def _watch_imports() -> None:
    import wrapt  # which TensorFlow needs, too

    wrapt.register_post_import_hook(_run_actions, "tensorflow")


def _run_actions(_tensorflow: ModuleType) -> None:
    while _actions:
        _actions.pop(next(iter(_actions)))()
