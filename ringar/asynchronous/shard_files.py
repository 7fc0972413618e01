"""The files of shards: one each, written whole, by the rank that serves the shard."""

from __future__ import annotations

import collections
import json
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ringar.asynchronous.partition import Piece
from ringar.asynchronous.shard import Shard
from ringar.collectives.agree import together
from ringar.job import log
from ringar.job.process_sets import ProcessSet
from ringar.keras.whole_file import written_whole

_log = log.logger(__name__)


class ShardFiles:
    """Save shards to files of a directory, and load them.

    Args:
        directory: the directory; None: no files.
        interval: the updates of a shard between saves; None: save only on request.
        pieces: the pieces of each shard, which its file must fit.
        name: that of the server, in errors.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        interval: int | None,
        pieces: Sequence[Sequence[Piece]],
        name: str,
    ) -> None:
        self._directory = None if directory is None else Path(directory)
        self._interval, self._name = interval, name
        self._saved = collections.Counter[int]()  # the version of each shard that was saved
        self._layouts = [
            json.dumps([(p.shape, p.description.dtype) for p in of_shard]) for of_shard in pieces
        ]

    def load(self, shards: Mapping[int, Shard], process_set: ProcessSet | None) -> None:
        """Let shards go on from their files. Collective: all shards have files, or none.

        Raises:
            ValueError: on the rank whose file does not fit, if some shards have none, or if another
                server keeps files there.
            RankError: on the others.
        """
        if self._directory is None:
            return
        where: dict[str, Any] = {
            "caller": "ringar.ParameterServer",
            "deed": "to load its shards",
            "process_set": process_set,
        }

        def look() -> tuple[bool, list[str]]:
            self._take_directory()
            return self._gaps(shards)

        of_ranks = together(look, **where)
        if not any(has_files for has_files, _ in of_ranks):
            return
        gaps = sorted({name for _, names in of_ranks for name in names})
        if gaps:
            raise ValueError(
                f"ringar.ParameterServer expected a file of each of {len(self._layouts)} shards in "
                f"{os.fspath(self._directory)!r}; it has files of shards, but not "
                f"{', '.join(gaps)}. All ranks must see the directory, and shards be as many as "
                "when it was written; or remove the files."
            )

        def load() -> None:
            for shard in shards.values():
                self._load(shard)

        together(load, **where)

    def after_update(self, shard: Shard) -> None:
        """Save a shard, if it is time. A file that cannot be written is a warning."""
        if self._interval is None or shard.version < self._saved[shard.number] + self._interval:
            return
        try:
            self.save([shard])
        except OSError as error:
            _log.warning("Shard %d was not saved, and goes on: %s", shard.number, error)

    def save(self, shards: Iterable[Shard]) -> None:
        """Save shards."""
        if self._directory is None:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        for shard in shards:
            arrays: dict[str, Any] = dict(_named(*item) for item in shard.state().items())
            arrays["layout"] = np.array(self._layouts[shard.number])
            with written_whole(self._path(shard.number)) as path, open(path, "wb") as file:
                np.savez(file, **arrays)
            self._saved[shard.number] = shard.version

    def release(self) -> None:
        """Let another server keep files in this directory."""
        if self._directory is not None:
            _in_use.pop(self._directory.resolve(), None)

    def _take_directory(self) -> None:
        """Keep other servers of this process out of it; they would overwrite the files."""
        assert self._directory is not None
        holder = _in_use.setdefault(self._directory.resolve(), self)
        if holder is not self:
            raise ValueError(
                f"ringar.ParameterServer {self._name!r} expected a directory of its own; the "
                f"server {holder._name!r} keeps its files in {os.fspath(self._directory)!r}. Close "
                "that one first, or give each a directory."
            )

    def _gaps(self, shards: Mapping[int, Shard]) -> tuple[bool, list[str]]:
        """Return whether there are files of any shards, and the names of the missing ones."""
        assert self._directory is not None
        paths = [self._path(number) for number in shards]
        has_files = any(self._directory.glob("shard-*-of-*.npz"))
        return has_files, [path.name for path in paths if not path.exists()]

    def _path(self, number: int) -> Path:
        assert self._directory is not None
        return self._directory / f"shard-{number}-of-{len(self._layouts)}.npz"

    def _load(self, shard: Shard) -> None:
        with np.load(self._path(shard.number)) as file:
            if str(file["layout"]) != self._layouts[shard.number]:
                raise ValueError(
                    f"{os.fspath(self._path(shard.number))!r} was expected to hold "
                    f"{self._layouts[shard.number]}; it holds {file['layout']}. Give the server "
                    "the model that it was written with, or another directory."
                )
            state = dict(_read(key, file[key]) for key in file.files if key != "layout")
        shard.load(state, restart=True)
        self._saved[shard.number] = shard.version


_in_use = weakref.WeakValueDictionary[Path, ShardFiles]()


def _named(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """Return an array as the archive holds it, with its key: NumPy's files know no bfloat16."""
    key = name.replace("/", ".")  # a slash would be a folder in the archive
    if array.dtype.kind != "V":
        return key, array
    return f"{key}:{array.dtype.name}", array.view(f"u{array.dtype.itemsize}")


def _read(key: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """Return the arguments of `_named`."""
    key, _, dtype = key.partition(":")
    return key.replace(".", "/"), array.view(dtype) if dtype else array
