"""Ranks with different batches, and one process that trains on all of them together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ringar
from tests import one_process

#: The rows of each rank's batches.
ROWS = ([6, 6, 5], [6, 2], [4], [6, 6, 6, 6])

Batch = tuple[np.ndarray, ...]
"""Inputs, targets, and sample weights if there are any."""


def batches_of(size: int, make: Callable[[int, int], Batch]) -> list[list[Batch]]:
    """The batches of each of `size` ranks; `make` takes a number of rows and a seed."""
    return [
        [make(rows, 10 * rank + number) for number, rows in enumerate(ROWS[rank])]
        for rank in range(size)
    ]


def together(batches: Sequence[Sequence[Batch]]) -> list[Batch]:
    """The batches of one process: the k-th has the rows of all ranks' k-th."""
    longest = max(map(len, batches))
    steps = [[shard[k] for shard in batches if k < len(shard)] for k in range(longest)]
    return [tuple(np.concatenate(parts) for parts in zip(*step, strict=True)) for step in steps]


def dataset(batches: Sequence[Batch], has_length: bool = True) -> tf.data.Dataset:
    """A data set of these batches, whose number Keras knows or not."""
    signature = tuple(
        tf.TensorSpec([None, *part.shape[1:]], tf.as_dtype(part.dtype)) for part in batches[0]
    )
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    return data.apply(tf.data.experimental.assert_cardinality(len(batches))) if has_length else data


def train(
    build: Callable[[], keras.Model],
    batches: Sequence[Batch],
    *,
    distributed: bool,
    has_length: bool = True,
    epochs: int = 2,
    optimizer: Callable[[], Any] = lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    callbacks: Sequence[Any] = (),
    **options: Any,
) -> tuple[keras.Model, Any]:
    """Train a model on the batches of a rank, or of all; return it and its history."""
    model = build()
    wrapped = ringar.DistributedOptimizer(optimizer()) if distributed else optimizer()
    model.compile(wrapped, **options)
    data = dataset(batches, has_length)
    if len(model.outputs) > 1:
        data = data.map(lambda x, *y: (x, y * len(model.outputs) if len(y) == 1 else y))
    first = [ringar.callbacks.Distributed()] if distributed else []
    options_of_fit = {"epochs": epochs, "verbose": 0, "callbacks": [*first, *callbacks]}
    if distributed:
        return model, model.fit(data, **options_of_fit).history
    return model, one_process.fit(model, data, **options_of_fit)
