"""The product of a rank's weights with states, and its gradients: by native kernels or by SciPy.

States are [neurons, examples]: a weight meets all examples of a neuron in consecutive memory. Both
implementations give the same numbers but for rounding. The native one (tf_ops/sparse) computes both
gradients in one pass and runs on several threads; SciPy's product is the reference, which tests and
benchmarks compare with.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from ringar.parallel.scan.computation import compute, or_empty
from ringar.research.sparse.matrices import scipy_sparse
from ringar.research.sparse.plan import LayerPlan, Pattern

KERNELS = ("native", "scipy")
_BLOCK_BYTES = 2**24
"""The memory for gathered states in SciPy's gradient of the weights."""

Gradients = tuple[tf.Tensor, tf.Tensor | None, tf.Tensor | None, tf.Tensor | None]


class Product:
    """Multiply the weights of one rank's neurons with the states that they read.

    Args:
        plan: the rank's part of the layer.
        pattern: where its weights are.
        differentiates: whether the states have a gradient; the inputs of a net have none.
        kernel: "native" or "scipy".
        threads: the threads of the native kernel.
    """

    def __init__(
        self, plan: LayerPlan, pattern: Pattern, differentiates: bool, kernel: str, threads: int
    ) -> None:
        self._rows, self._columns = len(plan.neurons), len(plan.inputs)
        self._own_inputs, self._ghosts = plan.own_inputs, plan.ghosts
        self._differentiates, self._threads, self._kernel = differentiates, threads, kernel
        if kernel == "scipy":
            self._numpy = _Numpy(pattern, (self._rows, self._columns))
        else:
            with tf.init_scope():
                self._by_rows = [tf.constant(a) for a in (pattern.offsets, pattern.columns)]
                by_columns = (pattern.starts, pattern.rows, pattern.places)
                self._by_columns = [tf.constant(a) for a in by_columns]
        self._multiply: Callable[..., tf.Tensor] = getattr(self, f"_multiply_{kernel}")
        self._gradients: Callable[..., list[tf.Tensor]] = getattr(self, f"_gradients_{kernel}")

    @property
    def columns(self) -> np.ndarray:
        """The column of each weight, among this rank's inputs, row by row, int32 [entries]."""
        numbers = self._numpy.columns if self._kernel == "scipy" else self._by_rows[1].numpy()
        return np.asarray(numbers)

    def __call__(
        self, values: tf.Tensor, bias: tf.Tensor | None, own_states: tf.Tensor, ghosts: tf.Tensor
    ) -> tf.Tensor:
        """Return the weighted sums of this rank's neurons, [rows, examples].

        Args:
            values: the weights, row by row, [entries].
            bias: of the neurons, [rows], or None.
            own_states: the states of the inputs that this rank has, [own inputs, examples].
            ghosts: the states of inputs that it has received, [ghosts, examples].
        """

        @tf.custom_gradient
        def multiply(
            values: tf.Tensor, bias: tf.Tensor, own_states: tf.Tensor, ghosts: tf.Tensor
        ) -> tuple[tf.Tensor, Callable[[tf.Tensor], Gradients]]:
            def backward(upstream: tf.Tensor) -> Gradients:
                d_values, *d_states = self._gradients(values, upstream, own_states, ghosts)
                d_bias = tf.reduce_sum(upstream, 1) if has_bias else tf.zeros_like(bias)
                if not self._differentiates:
                    return d_values, d_bias, None, None
                return d_values, d_bias, d_states[0], d_states[1]

            return self._multiply(values, bias, own_states, ghosts), backward

        has_bias = bias is not None
        return multiply(values, or_empty(bias, values.dtype), own_states, ghosts)

    def _multiply_native(
        self, values: tf.Tensor, bias: tf.Tensor, own_states: tf.Tensor, ghosts: tf.Tensor
    ) -> tf.Tensor:
        spec = tf.TensorSpec([self._rows, own_states.shape[1]], values.dtype)
        inputs = [values, bias, own_states, ghosts, *self._by_rows]
        return compute("sparse_multiply", inputs, [spec], threads=self._threads)[0]

    def _gradients_native(
        self, values: tf.Tensor, upstream: tf.Tensor, own_states: tf.Tensor, ghosts: tf.Tensor
    ) -> list[tf.Tensor]:
        shapes = [values.shape, [0, own_states.shape[1]], [0, own_states.shape[1]]]
        if self._differentiates:
            shapes[1:] = own_states.shape, ghosts.shape
        return compute(
            "sparse_gradient",
            [values, upstream, own_states, ghosts, *self._by_columns],
            [tf.TensorSpec(shape, values.dtype) for shape in shapes],
            states=self._differentiates,
            threads=self._threads,
        )

    def _multiply_scipy(
        self, values: tf.Tensor, bias: tf.Tensor, own_states: tf.Tensor, ghosts: tf.Tensor
    ) -> tf.Tensor:
        states = tf.concat([own_states, ghosts], 0)
        sums = tf.numpy_function(self._numpy.multiply, [values, states], values.dtype)
        sums.set_shape([self._rows, own_states.shape[1]])
        return sums if bias.shape[0] == 0 else sums + bias[:, None]

    def _gradients_scipy(
        self, values: tf.Tensor, upstream: tf.Tensor, own_states: tf.Tensor, ghosts: tf.Tensor
    ) -> list[tf.Tensor]:
        states = tf.concat([own_states, ghosts], 0)
        d_values = tf.numpy_function(self._numpy.weights, [upstream, states], values.dtype)
        d_values.set_shape(values.shape)
        if not self._differentiates:
            return [d_values]
        d_states = tf.numpy_function(self._numpy.transposed, [values, upstream], values.dtype)
        d_states.set_shape([self._columns, own_states.shape[1]])
        return [d_values, *tf.split(d_states, [self._own_inputs, self._ghosts])]


class _Numpy:
    """Hold a pattern for SciPy's products."""

    def __init__(self, pattern: Pattern, shape: tuple[int, int]) -> None:
        self._pattern, self._shape = pattern, shape
        self.columns = pattern.columns
        self._row_of = np.repeat(np.arange(shape[0]), np.diff(pattern.offsets))

    def multiply(self, values: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Return the weights times the states."""
        arrays = (values, self._pattern.columns, self._pattern.offsets)
        return np.asarray(scipy_sparse().csr_array(arrays, shape=self._shape) @ states)

    def transposed(self, values: np.ndarray, upstream: np.ndarray) -> np.ndarray:
        """Return the transposed weights times the gradient of the sums."""
        arrays = (values[self._pattern.places], self._pattern.rows, self._pattern.starts)
        return np.asarray(scipy_sparse().csr_array(arrays, shape=self._shape[::-1]) @ upstream)

    def weights(self, upstream: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Return the gradient of the weights: a dot product over the examples for each."""
        columns = self._pattern.columns
        gradients = np.empty(len(columns), upstream.dtype)
        block = max(1, _BLOCK_BYTES // max(1, upstream.itemsize * upstream.shape[1]))
        for begin in range(0, len(columns), block):
            entries = slice(begin, begin + block)
            rows, read = upstream[self._row_of[entries]], states[columns[entries]]
            gradients[entries] = np.einsum("eb,eb->e", rows, read)
        return gradients
