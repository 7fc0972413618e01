"""Which rows of which variables each shard of a parameter server holds: plain data.

The variables lie one after the other, and each shard gets as many bytes of them as the others, up
to the end of a row. So `shards - 1` variables at most are cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from ringar.asynchronous.gradients import Gradient, Rows


@dataclass(frozen=True)
class Description:
    """Describe a variable: its name, shape and dtype, and whether shards may share its rows."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    can_be_cut: bool = True

    @property
    def rows(self) -> int:
        """The length of the first axis; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    @property
    def bytes(self) -> int:
        """The bytes of the variable."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


def describe(variable: Any) -> Description:
    """Return the description of a variable of Keras."""
    return Description(
        str(getattr(variable, "path", variable.name)),
        tuple(int(dim) for dim in variable.shape),
        keras.backend.standardize_dtype(variable.dtype),
        _can_be_cut(getattr(variable, "constraint", None)),
    )


def _can_be_cut(constraint: Any) -> bool:
    """Return whether a constraint treats each row by itself."""
    if constraint is None or type(constraint) is keras.constraints.NonNeg:
        return True
    if type(constraint).__module__.split(".")[0] != "keras" or not hasattr(constraint, "axis"):
        return False
    axes = np.atleast_1d(constraint.axis)
    return bool((axes > 0).all())


@dataclass(frozen=True)
class Piece:
    """Name rows of a variable: from `begin` up to `end`, which is excluded.

    Attributes:
        variable: the number of the variable.
        description: the variable.
    """

    variable: int
    begin: int
    end: int
    description: Description

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the piece; that of the variable if it has all rows."""
        if self.is_whole:
            return self.description.shape
        return (self.end - self.begin, *self.description.shape[1:])

    @property
    def bytes(self) -> int:
        """The bytes of the piece."""
        return self.description.bytes * (self.end - self.begin) // max(self.description.rows, 1)

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole variable."""
        return self.end - self.begin == self.description.rows

    @property
    def name(self) -> str:
        """The variable's name, with the rows if they are not all."""
        name = self.description.name
        return name if self.is_whole else f"{name}[{self.begin}:{self.end}]"

    def of(self, value: np.ndarray) -> np.ndarray:
        """Return the piece of a value of the variable, a view."""
        return value if self.is_whole else value[self.begin : self.end]

    def of_gradient(self, gradient: Gradient) -> Gradient:
        """Return the piece of a gradient by the variable."""
        if gradient is None or self.is_whole:
            return gradient
        if isinstance(gradient, Rows):
            is_here = (gradient.indices >= self.begin) & (gradient.indices < self.end)
            return Rows(gradient.indices[is_here] - self.begin, gradient.values[is_here])
        return self.of(gradient)


def partition(variables: Sequence[Description], shards: int) -> list[list[Piece]]:
    """Deal variables out to shards, of equal bytes up to a row.

    Args:
        variables: the variables, in the order of the model.
        shards: the number of shards.

    Returns:
        The pieces of each shard, in the order of the variables. A shard has none if there are
        fewer rows than shards.
    """
    total = sum(variable.bytes for variable in variables)
    dealt: list[list[Piece]] = [[] for _ in range(shards)]
    before = 0  # bytes
    for number, variable in enumerate(variables):
        rows = variable.rows if variable.can_be_cut else min(variable.rows, 1)
        row = variable.bytes / max(rows, 1)
        begin = 0
        for shard in range(shards):
            # The rows that begin before the end of the shard's part are the shard's.
            share = total * (shard + 1) / shards - before
            end = rows if shard == shards - 1 else _rows_within(share, row, rows)
            end *= variable.rows // max(rows, 1)
            if end > begin or (variable.rows == 0 and shard == 0):
                dealt[shard].append(Piece(number, begin, end, variable))
            begin = max(begin, end)
        before += variable.bytes
    return dealt


def whole_values(
    pieces: Sequence[Sequence[Piece]], values: Sequence[Sequence[np.ndarray]]
) -> list[np.ndarray]:
    """Return the values of all variables, given those of each shard's pieces."""
    parts: dict[int, list[tuple[int, np.ndarray]]] = {}
    for of_shard, arrays in zip(pieces, values, strict=True):
        for piece, array in zip(of_shard, arrays, strict=True):
            parts.setdefault(piece.variable, []).append((piece.begin, array))
    in_order = [[array for _, array in sorted(parts[n], key=_begin)] for n in sorted(parts)]
    return [arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for arrays in in_order]


def _begin(part: tuple[int, np.ndarray]) -> int:
    return part[0]


def _rows_within(room: float, row: float, rows: int) -> int:
    if row == 0:
        return rows
    return min(max(math.ceil(room / row - 0.5), 0), rows)
