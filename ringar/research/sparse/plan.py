"""A rank's part of a sparse layer: the rows of its neurons, and its ghosts.

A rank of part p holds the rows of the weights that belong to its neurons. They read neurons of the
layer before, of which some are its own and the others ghosts: neurons of other ranks, whose states
it receives in each step. The columns of its rows are numbered anew, own neurons first, then the
ghosts by rank. All ranks know the whole net when they plan, so that both sides of a message know
its rows without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ringar.research.sparse.matrices import entries_of, offsets_of
from ringar.research.sparse.partition import Partition
from ringar.research.sparse.reading import readers, words_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True)
class Pattern:
    """Hold where the weights of some rows are, by rows and by columns, for the kernels.

    Attributes:
        offsets: where the entries of each row begin, and their end, int32 [rows + 1].
        columns: the column of each entry, int32 [entries].
        starts: where the entries of each column begin, and their end, int32 [columns + 1].
        rows: the row of each entry, column by column, int32 [entries].
        places: the place of each of these entries in the order by rows, int32 [entries].
    """

    offsets: np.ndarray
    columns: np.ndarray
    starts: np.ndarray
    rows: np.ndarray
    places: np.ndarray

    @classmethod
    def of(cls, counts: np.ndarray, columns: np.ndarray, width: int) -> Pattern:
        """Make a pattern.

        Args:
            counts: the number of entries of each row.
            columns: the column of each entry, row by row.
            width: the number of columns.
        """
        order = np.argsort(columns, kind="stable")
        rows = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        starts = offsets_of(np.bincount(columns, minlength=width))
        arrays = (offsets_of(counts), columns, starts, rows[order], order)
        return cls(*(array.astype(np.int32) for array in arrays))


@dataclass(frozen=True)
class LayerPlan:
    """Describe a rank's part of a layer.

    Attributes:
        inputs: the neurons before that this rank's rows read: in the first layer the inputs of the
            net, else its own neurons, all of them, and then its ghosts; int64 [columns].
        own_inputs: how many of them need not be received.
        send: the places, among this rank's neurons before, of the states that it sends, by
            receiving rank, int32.
        send_counts: how many go to each rank, int64 [parts].
        receive_counts: how many ghosts come from each rank, int64 [parts].
        words: the number of states that all ranks send together, per example.
        neurons: this rank's neurons, int64 [rows].
        owners: the part of each neuron of the whole layer.
        offsets: where the weights of each of them begin, and their end.
        width: the number of neurons before.
    """

    inputs: np.ndarray
    own_inputs: int
    send: np.ndarray
    send_counts: np.ndarray
    receive_counts: np.ndarray
    words: int
    neurons: np.ndarray
    owners: np.ndarray
    offsets: np.ndarray
    width: int

    def neurons_of(self, part: int) -> np.ndarray:
        """Return a part's neurons, int64 [rows]."""
        return np.flatnonzero(self.owners == part)

    def entries_of(self, part: int) -> np.ndarray:
        """Return the places of a part's weights in the whole layer, int64 [entries]."""
        return entries_of(self.offsets, self.neurons_of(part))

    @property
    def ghosts(self) -> int:
        """The number of neurons of other ranks whose states this rank receives."""
        return len(self.inputs) - self.own_inputs


def plans(
    layers: Sequence[csr_array], partition: Partition, part: int
) -> Iterator[tuple[LayerPlan, Pattern]]:
    """Make a part's plan and the pattern of its weights for each layer, one after the other."""
    for number, layer in enumerate(layers):
        before = partition.owners[number - 1] if number else None
        yield _plan(layer, before, partition.owners[number], partition.parts, part)


def _plan(
    layer: csr_array, before: np.ndarray | None, owners: np.ndarray, parts: int, part: int
) -> tuple[LayerPlan, Pattern]:
    neurons = np.flatnonzero(owners == part)
    entries = entries_of(layer.indptr, neurons)
    counts = np.diff(layer.indptr)[neurons]
    read = layer.indices[entries]
    nothing = np.zeros(parts, np.int64)
    if before is None:
        inputs = np.unique(read).astype(np.int64)
        count = len(inputs)
        send, send_counts, receive_counts, words = np.zeros(0, np.int32), nothing, nothing, 0
    else:
        reads = readers(layer, owners, parts)
        rows = np.flatnonzero(before == part)
        ghosts = np.flatnonzero(reads[:, part] & (before != part))
        ghosts = ghosts[np.argsort(before[ghosts], kind="stable")]
        inputs, count = np.concatenate([rows, ghosts]), len(rows)
        receive_counts = np.bincount(before[ghosts], minlength=parts)
        columns = reads[rows]
        columns[:, part] = False
        to, place = np.nonzero(columns.T)
        send, send_counts = place.astype(np.int32), np.bincount(to, minlength=parts)
        words = words_of(reads, before)
    column = np.zeros(layer.shape[1], np.int32)
    column[inputs] = np.arange(len(inputs))
    plan = LayerPlan(
        inputs, count, send, send_counts.astype(np.int64), receive_counts.astype(np.int64), words,
        neurons, owners, layer.indptr, layer.shape[1],
    )  # fmt: skip
    return plan, Pattern.of(counts, column[read], len(inputs))
