"""A window of one rank: its part, in memory of this process (tf_ops/engine/window.cc)."""

from __future__ import annotations

import threading

import numpy as np

from ringar.job.memory import array_at
from ringar.job.one_rank.failure import MISMATCH, NOT_INITIALIZED, Failure
from ringar.job.one_rank.request import dtype_named, refused

_GET, _PUT, _ADD, _ATOMIC_ADD, _RACY_ADD, _FETCH_ADD, _VERSIONS = range(7)  # ringar_access
_NAMES = ("get", "put", "accumulate", "accumulate", "accumulate", "fetch_add", "version")
_NAMES_OF_ROWS = {_GET: "gather"}
_ATOMIC = ("float32", "float64", "int32", "int64", "uint32", "uint64")
_REDUCIBLE = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64")
_CHUNK_UNIT, _MOST_CHUNK_BYTES, _MOST_ELEMENTS = 64, 1 << 20, 1 << 40


class Window:
    """Own the part of a window, zero at first.

    Args:
        name: the name for errors.
        dtype: the name of the dtype.
        length: the number of elements.
        chunk_bytes: the length of a chunk, whose writes are counted.
        process_set: the number of the process set.
    """

    def __init__(
        self, name: str, dtype: str, length: int, chunk_bytes: int, process_set: int
    ) -> None:
        why = ""
        if not 0 <= length <= _MOST_ELEMENTS:
            why = f"expected a length from 0 to {_MOST_ELEMENTS}, received {length}"
        elif not 0 < chunk_bytes <= _MOST_CHUNK_BYTES or chunk_bytes % _CHUNK_UNIT:
            why = (
                f"expected chunks of a multiple of {_CHUNK_UNIT} bytes, at most "
                f"{_MOST_CHUNK_BYTES}, received {chunk_bytes}"
            )
        if why:
            title = f'open_window "{name} ({dtype}, chunks of {chunk_bytes} bytes)"'
            raise refused(title, why, process_set)
        self._name, self._dtype = name, dtype
        self.elements = np.zeros(length, dtype_named(dtype))
        self._chunk = chunk_bytes // self.elements.itemsize
        self._versions = np.zeros(-(-length // self._chunk), np.int64)
        self._lock = threading.Lock()
        self.is_closed = self.is_shut_down = False

    def access(
        self, rank: int, kind: int, start: int, count: int, array: int, versions: int
    ) -> None:
        """Read or write elements; `array` and `versions` are addresses."""
        with self._lock:
            self._check(_NAMES[kind], rank, self._refusal_of_range(start, count), kind)
            chunks = slice(start // self._chunk, -(-(start + count) // self._chunk))
            numbers = self._versions[chunks if count else slice(0, 0)]
            if versions:
                array_at(versions, numbers.shape, numbers.dtype)[...] = numbers
            if kind == _VERSIONS:
                return
            part = self.elements[start : start + count]
            values = array_at(array, (count,), self.elements.dtype)
            if kind == _GET:
                values[...] = part
                return
            now = values.copy() if kind == _PUT else _plus(part, values)
            if kind == _FETCH_ADD:
                values[...] = part
            part[...] = now
            numbers += 1

    def access_rows(
        self, rank: int, kind: int, rows: int, count: int, width: int, array: int, before: int
    ) -> None:
        """Read or change rows of the part; `rows`, `array` and `before` are addresses."""
        name = "update" if before else _NAMES_OF_ROWS.get(kind, "scatter_add")
        numbers = array_at(rows, (count,), np.dtype(np.int64))
        with self._lock:
            self._check(name, rank, self._refusal_of_rows(numbers, width), kind, bool(before))
            matrix = self.elements[: self.elements.size // width * width].reshape(-1, width)
            values = array_at(array, (count, width), self.elements.dtype)
            if kind == _GET:
                values[...] = matrix[numbers]
                return
            old = array_at(before, (count, width), self.elements.dtype) if before else None
            if len(np.unique(numbers)) == count:
                _change(matrix, numbers, values, old)
            else:  # a row that is there twice changes twice, in order
                for i in range(count):
                    place = slice(i, i + 1)
                    _change(
                        matrix, numbers[place], values[place], None if old is None else old[place]
                    )
            if kind == _ADD:
                self._count(numbers, width)

    def _count(self, rows: np.ndarray, width: int) -> None:
        for row in rows.tolist():
            end = (row + 1) * width
            self._versions[row * width // self._chunk : -(-end // self._chunk)] += 1

    def _check(self, name: str, rank: int, why: str, kind: int, moves: bool = False) -> None:
        title = f'"{self._name}": '
        if self.is_shut_down:
            raise Failure(
                NOT_INITIALIZED,
                f"window {title}expected ringar to run since the window was opened, but it was "
                "shut down; open it anew after ringar.init()",
            )
        if self.is_closed:
            why = "expected an open window, received one that was closed"
        elif rank != 0:
            why = f"expected a rank of the process set from 0 to 0, received {rank}"
        elif not why and (why := self._refusal_of_dtype(kind, moves)):
            why += f", received a window of {self._dtype}"
        if why:
            raise Failure(MISMATCH, f"rank 0 | {name} in window {title}{why}")

    def _refusal_of_range(self, start: int, count: int) -> str:
        if start >= 0 and count >= 0 and start <= self.elements.size - count:
            return ""
        return (
            f"expected elements among the {self.elements.size} of rank 0, received {count} from "
            f"{start} on"
        )

    def _refusal_of_rows(self, rows: np.ndarray, width: int) -> str:
        if width < 1:
            return f"expected rows of at least one element, received a width of {width}"
        count = self.elements.size // width
        faults = np.flatnonzero((rows < 0) | (rows >= count))
        if not faults.size:
            return ""
        return (
            f"expected rows among the {count} of width {width} of rank 0, received row "
            f"{rows[faults[0]]} at index {faults[0]}"
        )

    def _refusal_of_dtype(self, kind: int, moves: bool) -> str:
        atomic = "expected float32, float64, int32, int64, uint32 or uint64 for"
        if moves:
            return "" if self._dtype in _ATOMIC else f"{atomic} an update"
        if kind in (_ATOMIC_ADD, _FETCH_ADD) and self._dtype not in _ATOMIC:
            return f"{atomic} an atomic addition"
        if kind in (_ADD, _RACY_ADD) and self._dtype not in _REDUCIBLE:
            kinds = f"{', '.join(_REDUCIBLE[:-1])} or {_REDUCIBLE[-1]}"
            return f"expected {kinds} for an addition"
        return ""


def _change(
    matrix: np.ndarray, rows: np.ndarray, values: np.ndarray, before: np.ndarray | None
) -> None:
    """Add to different rows, or move them; `values` gets the new values of rows that moved."""
    now = matrix[rows]
    if before is None:
        matrix[rows] = _plus(now, values)
        return
    bits = f"u{matrix.itemsize}"
    old, new = before.view(bits), values.view(bits)
    with np.errstate(all="ignore"):
        moved = np.where(now.view(bits) == old, values, now + (values - before))
    values[...] = np.where(old == new, now, moved)
    matrix[rows] = values


def _plus(array: np.ndarray, summands: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(array + summands)
