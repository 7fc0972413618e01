"""Windows of the native library: memory of each rank that the others read and write."""

from __future__ import annotations

import ctypes

import numpy as np

from ringar.job.memory import Memory
from ringar.job.native import check, library

GET, PUT, ADD, ATOMIC_ADD, RACY_ADD, FETCH_ADD, VERSIONS = range(7)
"""The kinds of access to a window: `ringar_access` of ringar.h."""


class Window:
    """Own a window of the library; arrays on its memory refer to this object.

    Args:
        spec: the line of text that tf_ops/engine/spec.h describes.
        length: the number of elements of this rank's part.
        chunk_bytes: the length of a chunk.
    """

    def __init__(self, spec: str, length: int, chunk_bytes: int) -> None:
        lib = library()
        self._handle = ctypes.c_void_p()
        self._access, self._release = lib.ringar_access_window, lib.ringar_release_window
        self._access_rows = lib.ringar_access_rows
        check(
            lib.ringar_open_window(spec.encode(), length, chunk_bytes, ctypes.byref(self._handle))
        )

    def length(self, rank: int) -> int:
        """Return the number of elements in the part of a rank."""
        return int(library().ringar_window_length(self._handle, rank))

    def local(self, dtype: np.dtype, length: int) -> np.ndarray:
        """Return an array on this rank's part."""
        address = library().ringar_window_local(self._handle)
        return np.asarray(Memory(address, length * dtype.itemsize, self)).view(dtype)

    def access(
        self,
        kind: int,
        rank: int,
        start: int,
        count: int,
        array: np.ndarray | None,
        versions: np.ndarray | None = None,
    ) -> None:
        """Read or write elements of the part of a rank."""
        code = self._access(
            self._handle,
            rank,
            kind,
            start,
            count,
            None if array is None else array.ctypes.data,
            None if versions is None else versions.ctypes.data,
        )
        if code:
            check(code)

    def access_rows(
        self,
        kind: int,
        rank: int,
        rows: np.ndarray,
        width: int,
        array: np.ndarray,
        before: np.ndarray | None = None,
    ) -> None:
        """Read or change rows of the part of a rank."""
        # An object of ctypes for each array would take long: rows are often few.
        code = self._access_rows(
            self._handle,
            rank,
            kind,
            rows.__array_interface__["data"][0],
            rows.size,
            width,
            array.__array_interface__["data"][0],
            None if before is None else before.__array_interface__["data"][0],
        )
        if code:
            check(code)

    def close(self) -> None:
        """Close the window, with all ranks; its memory stays until the last array on it goes."""
        check(library().ringar_close_window(self._handle))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._release(self._handle)
