"""An Embedding of which a step of `ringar.Hogwild` reads and changes the rows of its batch only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringar.collectives.compiled import is_compiling
from ringar.errors import UnsupportedError
from ringar.research.hogwild.shared_weights import shared_of


@keras.saving.register_keras_serializable(package="ringar")
class HogwildEmbedding(keras.layers.Embedding):
    """Look up rows as `keras.layers.Embedding` does, which a `ringar.Hogwild` step shares as rows.

    In training, a lookup first reads the rows of its batch from the memory that the ranks share,
    and the step adds what it has changed in these rows. Other rows are not read, unless the
    optimizer computes with them. With `keras.layers.Embedding` a step reads the whole table.

    Weights and arguments are as in `keras.layers.Embedding`: `set_weights` of either takes those
    of the other. Without `ringar.Hogwild`, and outside training, it is that layer.

    Changes of rows outside the batch, by momentum or weight decay, are not shared.

    Args:
        input_dim: the number of rows.
        output_dim: the length of a row.
        **kwargs: as for `keras.layers.Embedding`, without LoRA and quantization.

    Example:
    ```python
    model = keras.Sequential([keras.Input((64,), dtype="int32"),
                              ringar.layers.HogwildEmbedding(100_000, 8),
                              keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(ringar.Hogwild(keras.optimizers.SGD(0.1)), "mse")
    ```
    """

    def __init__(self, input_dim: int, output_dim: int, **kwargs: Any) -> None:
        for argument in ("lora_rank", "quantization_config"):
            if kwargs.get(argument) is not None:
                raise ValueError(
                    f"`{argument}` is not possible with shared rows: use keras.layers.Embedding. "
                    f"Received: {argument}={kwargs[argument]!r}"
                )
        super().__init__(input_dim, output_dim, **kwargs)
        self.supports_jit = False  # Keras' "auto" must not compile it

    def build(self, input_shape: Sequence[int | None] | None = None) -> None:
        """Make the weights, and mark them for the optimizer."""
        super().build(input_shape)
        self.embeddings._ringar_is_table = True

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Return the rows of `inputs`, in training those that the ranks share."""
        if training:
            self._read(inputs)
        return super().call(inputs)

    def _read(self, inputs: tf.Tensor) -> None:
        """Read the rows of a batch into the weights of this rank."""
        if is_compiling():
            raise UnsupportedError(
                "XLA cannot compile a step with a ringar.layers.HogwildEmbedding: batches differ "
                "in the number of rows that they read. Compile the model with jit_compile=False, "
                "or use keras.layers.Embedding."
            )
        weights = self.embeddings
        rows, _ = tf.unique(tf.reshape(tf.cast(inputs, tf.int64), [-1]))
        rows_of_table = tf.gather(weights.value, rows)
        shared = tf.numpy_function(self._rows, [rows, rows_of_table], rows_of_table.dtype)
        weights.value.scatter_update(
            tf.IndexedSlices(tf.ensure_shape(shared, rows_of_table.shape), rows)
        )

    def _rows(self, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return rows that the ranks share; if they share none yet, this rank's own."""
        shared = shared_of(self.embeddings)
        return values if shared is None else shared.read_rows(rows)
