"""The whole net from the parts of all ranks, and a rank's part from the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np

from ringar.collectives import allgather
from ringar.parallel.sparse.layer import SparseRows
from ringar.parallel.sparse.matrices import entries_of, scipy_sparse
from ringar.parallel.sparse.partition import Partition
from ringar.sharding.grid import Grid

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class Whole:
    """Know where the variables of all ranks belong in the whole net.

    Args:
        layers: the net.
        partition: the placement of its neurons.
        rows: this rank's part of each layer.
        grid: the grid whose model group has the parts.
    """

    def __init__(
        self,
        layers: Sequence[csr_array],
        partition: Partition,
        rows: Sequence[SparseRows],
        grid: Grid,
    ) -> None:
        self._offsets = [layer.indptr for layer in layers]
        self._widths = [layer.shape[1] for layer in layers]
        self._partition, self._rows, self._grid = partition, list(rows), grid
        self._layer_of = {
            id(variable): (number, variable is layer.values)
            for number, layer in enumerate(rows)
            for variable in (layer.values, layer.bias)
            if variable is not None
        }

    def matrices(self) -> list[csr_array]:
        """Return all weights, on every rank. Collective over the model group."""
        found = []
        for number, layer in enumerate(self._rows):
            own = layer.plan.inputs[layer.plan.pattern.columns]
            columns = self._gathered(own, number, True, f"{layer.name}/columns")
            arrays = (self.gathered(layer.values, layer.values), columns, self._offsets[number])
            shape = (len(self._offsets[number]) - 1, self._widths[number])
            found.append(scipy_sparse().csr_array(arrays, shape=shape))
        return found

    def biases(self) -> list[np.ndarray] | None:
        """Return all biases, on every rank, None if there are none. Collective."""
        biases = [layer.bias for layer in self._rows if layer.bias is not None]
        return [self.gathered(bias, bias) for bias in biases] or None

    def gathered(self, variable: keras.Variable, owner: keras.Variable) -> np.ndarray:
        """Return the whole of a variable, on every rank. Collective over the model group.

        Args:
            variable: one of the net's, or a slot of an optimizer.
            owner: the variable of the net that it belongs to, or itself.
        """
        value = np.asarray(keras.ops.convert_to_numpy(variable))
        return self._gathered(value, *self._layer_of[id(owner)], owner.path)

    def part(self, whole: np.ndarray, owner: keras.Variable) -> np.ndarray:
        """Return this rank's part of the whole of a variable of the net, or of a slot of it."""
        return whole[self._places(*self._layer_of[id(owner)], self._grid.part)]

    def _gathered(self, value: np.ndarray, number: int, of_entries: bool, name: str) -> np.ndarray:
        grid = self._grid
        if grid.model > 1:
            value = np.asarray(allgather(value, name=name, process_set=grid.model_set))
        places = [self._places(number, of_entries, part) for part in range(grid.model)]
        whole = np.empty_like(value)
        whole[np.concatenate(places)] = value
        return whole

    def _places(self, number: int, of_entries: bool, part: int) -> np.ndarray:
        """Return where the weights, or else the biases, of a part are in the whole layer."""
        neurons = np.flatnonzero(self._partition.owners[number] == part)
        return entries_of(self._offsets[number], neurons) if of_entries else neurons
