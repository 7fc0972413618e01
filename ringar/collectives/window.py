"""Windows: memory that the ranks of a process set open together, with access from one side."""

from __future__ import annotations

from typing import Literal, overload

import numpy as np
import numpy.typing as npt

from ringar import errors
from ringar.collectives import call as calls
from ringar.job import native_window
from ringar.job.process_sets import ProcessSet

_INT64 = np.dtype(np.int64)


class Window:
    """Open memory on all ranks of a process set, which each of them reads and writes by itself.

    Every rank contributes a part, zero at first. Opening and closing are collective. Between them
    no rank waits for another one, and accesses have no order between ranks. A call returns when its
    access is done. Several threads of a process may use a window at the same time.

    Each part is divided into chunks. A `get` never sees half of a `put` or locked `accumulate` in
    a chunk; across chunks it may.

    Args:
        length: the number of elements of this rank's part, 0 or more. Ranks may differ.
        dtype: the dtype, equal on all ranks; any that collectives take.
        process_set: the ranks that open the window; default all. Windows number ranks as the set.
        name: in errors; must be equal on all ranks.
        chunk_bytes: the length of a chunk, a multiple of 64 up to 1 MiB, equal on all ranks.

    Raises:
        MismatchError: ranks differ in `dtype`, `name` or `chunk_bytes`, or a rank has a bad
            argument or too little shared memory.
        DeadlineError: a rank did not open the window in time.
        PeerLostError: a rank died or left before all had opened the window.

    Methods raise a `MismatchError` for a rank, range or dtype that does not fit, on the calling
    rank only; a `PeerLostError` if the other rank has died or left, or if a rank has died while it
    wrote to the same chunk; and a `NotInitializedError` after `ringar.shutdown`, which closes all
    windows.

    Example:
    ```python
    with ringar.Window(1000, name="weights") as window:
        window.accumulate(0, gradient)  # adds to the part of rank 0
        weights = window.get(0)
    ```
    """

    def __init__(
        self,
        length: int,
        dtype: npt.DTypeLike = "float32",
        process_set: ProcessSet | None = None,
        *,
        name: str | None = None,
        chunk_bytes: int = 32768,
    ) -> None:
        call, self._process_set = calls.begin(
            "open_window", process_set, name or "window", function="ringar.Window"
        )
        self.dtype = np.dtype(dtype)
        self.name = call.name
        self._ranks = self._process_set.size()
        self._native = native_window.Window(call.spec(self.dtype.name), length, chunk_bytes)
        self._chunk_elements = chunk_bytes // self.dtype.itemsize
        me = self._process_set.rank()
        self._local = self._native.local(self.dtype, self._native.length(me))

    @property
    def local(self) -> np.ndarray:
        """This rank's part, as an array on its memory.

        Reading and writing it is not synchronized with other ranks. The array stays valid after
        `close`.
        """
        return self._local

    def length(self, rank: int) -> int:
        """Return the number of elements in the part of a rank.

        Args:
            rank: a rank of the process set.
        """
        self._check_rank(rank)
        return self._native.length(rank)

    @overload
    def get(
        self,
        rank: int,
        start: int = ...,
        count: int | None = ...,
        out: np.ndarray | None = ...,
        *,
        versions: Literal[False] = ...,
    ) -> np.ndarray: ...

    @overload
    def get(
        self,
        rank: int,
        start: int = ...,
        count: int | None = ...,
        out: np.ndarray | None = ...,
        *,
        versions: Literal[True],
    ) -> tuple[np.ndarray, np.ndarray]: ...

    def get(
        self,
        rank: int,
        start: int = 0,
        count: int | None = None,
        out: np.ndarray | None = None,
        *,
        versions: bool = False,
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Read elements of the part of a rank.

        Args:
            rank: a rank of the process set.
            start: the first element.
            count: the number of elements; default all from `start` on.
            out: a C-contiguous array for the result, of the window's dtype and `count` elements.
            versions: whether to return the versions of the chunks that were read, too.

        Returns:
            `out`, or a new array; with `versions` a tuple of that and an int64 array with the
            version of each chunk (see `version`).
        """
        if count is None:
            count = out.size if out is not None else self.length(rank) - start
        if out is None:
            out = np.empty(max(count, 0), self.dtype)
        elif out.size != count:
            raise self._refusal(f"`out` of {count} elements", f"{out.size} elements")
        self._check_array("out", out, writable=True)
        numbers = self._versions_for(start, count) if versions else None
        self._native.access(native_window.GET, rank, start, count, out, numbers)
        return out if numbers is None else (out, numbers)

    def put(self, rank: int, array: np.ndarray, start: int = 0) -> None:
        """Write elements of the part of a rank.

        Args:
            rank: a rank of the process set.
            array: the values, of the window's dtype and any shape.
            start: the first element.
        """
        self._write(native_window.PUT, rank, array, start)

    def accumulate(
        self,
        rank: int,
        array: np.ndarray,
        start: int = 0,
        *,
        lock: bool = True,
        atomic: bool = False,
    ) -> None:
        """Add to elements of the part of a rank.

        No addition is lost with `lock`, if all ranks use it, nor with `atomic`, if all use that or
        `fetch_add`. Without both, additions at the same time may be lost, as in Hogwild!

        Args:
            rank: a rank of the process set.
            array: the summands, of the window's dtype and any shape.
            start: the first element.
            lock: whether one rank at a time adds to a chunk, and a `get` sees all of it or nothing.
            atomic: whether to add each element atomically, without a lock. For float32, float64 and
                integers of 32 and 64 bits.
        """
        self._write(_adding(lock, atomic), rank, array, start)

    def gather(
        self,
        rank: int,
        rows: npt.ArrayLike,
        width: int | None = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Read rows of the part of a rank, which is a matrix of rows of `width` elements.

        Args:
            rank: a rank of the process set.
            rows: the numbers of the rows, integers, in any order; int64 arrays are fastest.
            width: the number of elements of a row; None: single elements.
            out: a C-contiguous array for the result, of the window's dtype and size.

        Returns:
            `out`, or a new array `[len(rows), width]`; without `width` `[len(rows)]`.
        """
        numbers = self._numbers(rows)
        if out is None:
            shape = (numbers.size,) if width is None else (numbers.size, max(width, 0))
            out = np.empty(shape, self.dtype)
        else:
            if out.size != numbers.size * (width or 1):
                expected = f"`out` of {numbers.size * (width or 1)} elements"
                raise self._refusal(expected, f"{out.size} elements")
            self._check_array("out", out, writable=True)
        row_width = 1 if width is None else width
        self._native.access_rows(native_window.GET, rank, numbers, row_width, out)
        return out

    def scatter_add(
        self,
        rank: int,
        rows: npt.ArrayLike,
        values: np.ndarray,
        *,
        lock: bool = True,
        atomic: bool = False,
    ) -> None:
        """Add to rows of the part of a rank, as `accumulate` adds to elements side by side.

        `rows` may repeat a row. Without a lock, additions do not count in `version`.

        Args:
            rank: a rank of the process set.
            rows: the numbers of the rows, integers, in any order; int64 arrays are fastest.
            values: the summands, of the window's dtype: `[len(rows), width]`, or `[len(rows)]` for
                single elements.
            lock: whether one rank at a time adds to a chunk, and others see all or nothing of a row
                in a chunk.
            atomic: whether to add each element atomically, without a lock. For float32, float64 and
                integers of 32 and 64 bits.
        """
        numbers = self._numbers(rows)
        rows_of_values = self._rows_of("values", values, numbers)
        width = rows_of_values.size // (numbers.size or 1) or 1
        self._native.access_rows(_adding(lock, atomic), rank, numbers, width, rows_of_values)

    def update(
        self,
        rank: int,
        rows: npt.ArrayLike,
        before: np.ndarray,
        after: np.ndarray,
        *,
        lock: bool = True,
        atomic: bool = False,
    ) -> np.ndarray:
        """Change rows of the part of a rank from values that this rank has read to new ones.

        Elements that still equal `before` become `after`, bit for bit. Where other ranks have
        changed an element meanwhile, the difference is added. For float32, float64 and integers of
        32 and 64 bits.

        Args:
            rank: a rank of the process set.
            rows: the numbers of the rows, integers, in any order; int64 arrays are fastest.
            before: the values that this rank has read, `[len(rows), width]` or `[len(rows)]`.
            after: the new values, of the same shape.
            lock: as for `scatter_add`.
            atomic: as for `scatter_add`.

        Returns:
            The values that the rows have now, of the shape of `after`.
        """
        numbers = self._numbers(rows)
        old = self._rows_of("before", before, numbers)
        self._check_array("after", after)
        if after.size != old.size:
            raise self._refusal(f"`after` of {old.size} elements", f"{after.size} elements")
        now = np.array(after, order="C")  # a copy, which takes the result
        width = old.size // max(numbers.size, 1)
        self._native.access_rows(_adding(lock, atomic), rank, numbers, width or 1, now, old)
        return now

    def fetch_add(self, rank: int, index: int, value: float) -> int | float:
        """Add to one element atomically.

        Args:
            rank: a rank of the process set.
            index: the element.
            value: the summand.

        Returns:
            The value before.
        """
        array = np.full(1, value, self.dtype)
        self._native.access(native_window.FETCH_ADD, rank, index, 1, array)
        before: int | float = array[0].item()
        return before

    def version(self, rank: int, chunk: int) -> int:
        """Return the number of writes to a chunk that are complete.

        Args:
            rank: a rank of the process set.
            chunk: the number of the chunk; element `i` lies in chunk
                `i // (chunk_bytes // itemsize)`.
        """
        number = np.zeros(1, np.int64)
        self._native.access(
            native_window.VERSIONS, rank, chunk * self._chunk_elements, 1, None, number
        )
        return int(number[0])

    def close(self) -> None:
        """Close the window. All ranks of the process set call it; a second call does nothing.

        It waits until no rank reads or writes the window any longer.
        """
        self._native.close()

    def __enter__(self) -> Window:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # After an error the other ranks may not come, and `close` would wait for them.
        if kind is None:
            self.close()

    def _write(self, way: int, rank: int, array: np.ndarray, start: int) -> None:
        plain = self._plain("array", array)
        self._check_array("array", plain)
        self._native.access(way, rank, start, plain.size, plain)

    def _numbers(self, rows: npt.ArrayLike) -> np.ndarray:
        if type(rows) is np.ndarray and rows.dtype == _INT64 and rows.flags.c_contiguous:
            return rows  # without another call: an update of a few rows takes some microseconds
        numbers = np.asarray(rows)
        if not np.issubdtype(numbers.dtype, np.integer) and numbers.size > 0:
            raise self._refusal("`rows` of integers", f"dtype {numbers.dtype}")
        return np.ascontiguousarray(numbers, np.int64)

    def _rows_of(self, argument: str, values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        plain = values
        if (
            type(plain) is not np.ndarray
            or plain.dtype != self.dtype
            or not plain.flags.c_contiguous
        ):
            plain = self._plain(argument, values)
            self._check_array(argument, plain)
        rows, size = numbers.size, plain.size
        if size != rows and (size % (rows or 1) or (size == 0) != (rows == 0)):
            raise self._refusal(
                f"`{argument}` with as many elements for each of {numbers.size} rows",
                f"{plain.size} elements",
            )
        return plain

    def _plain(self, argument: str, values: np.ndarray) -> np.ndarray:
        if isinstance(values, np.ma.MaskedArray):
            raise self._refusal(f"`{argument}` without a mask", "a masked array")
        return np.ascontiguousarray(values)

    def _versions_for(self, start: int, count: int) -> np.ndarray:
        chunks = -(-(start + count) // self._chunk_elements) - start // self._chunk_elements
        return np.zeros(max(chunks, 0) if count > 0 else 0, np.int64)

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self._ranks:
            raise self._refusal(
                f"a rank of the process set from 0 to {self._ranks - 1}", f"rank {rank}"
            )

    def _check_array(self, argument: str, array: np.ndarray, *, writable: bool = False) -> None:
        if array.dtype != self.dtype:
            raise self._refusal(f"`{argument}` of dtype {self.dtype}", f"dtype {array.dtype}")
        if not array.flags.c_contiguous or (writable and not array.flags.writeable):
            raise self._refusal(f"`{argument}` to be a writable C-contiguous array", "another one")

    def _refusal(self, expected: str, received: str) -> errors.MismatchError:
        call = calls.Call("window", name=self.name)
        return errors.MismatchError(call.refusal(expected, received, "The window is unchanged."))


def _adding(lock: bool, atomic: bool) -> int:
    return (
        native_window.ATOMIC_ADD
        if atomic
        else native_window.ADD
        if lock
        else native_window.RACY_ADD
    )
