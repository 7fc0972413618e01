"""Files that appear whole: a crash while one is written leaves the former file as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import keras

from ringar.keras.zero.slot_files import only_answers


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[str]:
    """Return a context that yields a path beside `path`, and renames that file at the end.

    A path of an object store (`gs://...`) is yielded as it is: such a store shows whole objects
    only.

    Args:
        path: the file; its folder must exist. The path beside it has the same endings.
    """
    path = os.fspath(path)
    if "://" in path:
        yield path
        return
    folder, name = os.path.split(path)
    beside = os.path.join(folder, f".partial-{name}")
    try:
        yield beside
        with open(beside, "rb") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


def _target(model: keras.Model, path: str | os.PathLike[str]) -> AbstractContextManager[Any]:
    """Return a context with the path to which this rank saves a model."""
    return nullcontext(path) if only_answers(model) else written_whole(path)


class SavedWhole:
    """A Keras model whose `save` and `save_weights` go through `written_whole`.

    Args:
        model: the model, which answers for all other methods, for attributes and the class.
    """

    def __init__(self, model: keras.Model) -> None:
        object.__setattr__(self, "_whole", model)

    def save(self, filepath: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Save the model."""
        with _target(self._whole, filepath) as path:
            self._whole.save(path, *args, **kwargs)

    def save_weights(self, filepath: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Save the weights."""
        with _target(self._whole, filepath) as path:
            self._whole.save_weights(path, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_whole"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._whole, name, value)

    @property  # type: ignore[misc]  # as the optimizer's
    def __class__(self) -> type:
        return type(self._whole)
