"""A rank's part of a sparse layer: its weights and biases as cut variables, and its product."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from ringar.research.sparse.exchange import Exchange
from ringar.research.sparse.kernels import Product
from ringar.research.sparse.matrices import scipy_sparse
from ringar.research.sparse.plan import LayerPlan, Pattern
from ringar.sharding.cut import PlacedCut, cut_of, mark
from ringar.sharding.grid import Grid
from ringar.sharding.part_files import SavesPart
from ringar.sharding.whole import whole_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class SparseRows(SavesPart, keras.layers.Layer):
    """Compute the states of this rank's neurons of a sparse layer.

    Args:
        plan: this rank's part.
        pattern: where its weights are.
        weights: the weights of the whole layer, row by row.
        bias: the biases of all its neurons, or None.
        activation: a function of each neuron's sum by itself.
        exchange: brings the ghosts; None in the first layer, which has none.
        kernel: "native" or "scipy".
        threads: the threads of the native kernel.
        grid: the grid whose model group has the parts.
        name: the layer's name, the same on all ranks.
        dtype: "float32" or "float64".
    """

    def __init__(
        self,
        plan: LayerPlan,
        pattern: Pattern,
        weights: np.ndarray,
        bias: np.ndarray | None,
        activation: str,
        *,
        exchange: Exchange | None,
        kernel: str,
        threads: int,
        grid: Grid,
        name: str,
        dtype: str,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.supports_jit = False  # uneven messages are not compiled
        self.plan, self.grid = plan, grid
        self.activation = keras.activations.get(activation)
        self._exchange = exchange
        self._product = Product(plan, pattern, exchange is not None, kernel, threads)
        self.values = self._part("values", weights, plan.entries_of)
        self.bias = None if bias is None else self._part("bias", bias, plan.neurons_of)
        self.built = True

    def _part(
        self, name: str, array: np.ndarray, places: Callable[[int], np.ndarray]
    ) -> keras.Variable:
        """Make a variable that is this rank's part of one of the whole layer."""
        cut = PlacedCut(0, self.grid, places)
        part = cut.part(array)
        variable = self.add_weight(shape=part.shape, initializer="zeros", name=name)
        variable.assign(part)
        mark(variable, cut)
        return variable

    def matrix(self) -> csr_array:
        """Return the weights of the whole layer. Collective over the model group."""
        plan, cut = self.plan, cut_of(self.values)
        columns = whole_of(plan.inputs[self._product.columns], cut, f"{self.name}/columns")
        arrays = (whole_of(self.values, cut), columns, plan.offsets)
        return scipy_sparse().csr_array(arrays, shape=(len(plan.owners), plan.width))

    def call(self, states: tf.Tensor) -> tf.Tensor:
        """Return the states of this rank's neurons, given those of its inputs."""
        if self._exchange is None:
            ghosts = tf.zeros([0, tf.shape(states)[1]], states.dtype)
        else:
            ghosts = self._exchange(states)
        values = tf.convert_to_tensor(self.values)
        bias = None if self.bias is None else tf.convert_to_tensor(self.bias)
        return self.activation(self._product(values, bias, states, ghosts))
