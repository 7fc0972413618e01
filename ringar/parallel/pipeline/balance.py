"""The choice of cuts with which all modules take equally long.

Every operation of the model is timed alone, on random numbers: forward, backward, and the update of
its weights. Among all possible cuts, the chosen ones minimize the time of the slowest module. Among
cuts that are equal within 1%, they minimize the bytes sent.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringar.parallel.pipeline.cut import Graph

_REPEATS = 3
_EMPTY_CALLS = 30  # short ones, whose time is subtracted from that of each operation
_LIKE = 0.01


def seconds_per_node(graph: Graph, batch_size: int) -> list[float]:
    """Return the seconds of each operation, forward and backward, on a batch of random numbers.

    Args:
        graph: the graph of the model.
        batch_size: the number of examples.

    Raises:
        ValueError: the model has inputs of unknown size.
    """
    tensors = {id(tensor): _random(tensor, batch_size) for tensor in graph.model.inputs}
    empty = tf.function(lambda values: [tf.reduce_max(values[0])])
    call = _timed(empty, [tf.zeros([8])], _EMPTY_CALLS)
    inputs = set(tensors)
    return [max(_seconds(node, tensors, inputs) - call, 0.0) for node in graph.nodes]


def partition(graph: Graph, seconds: list[float], modules: int) -> list[int]:
    """Return the positions of `modules - 1` cuts.

    Args:
        graph: the graph of the model.
        seconds: the seconds of each node.
        modules: the number of modules.

    Raises:
        ValueError: the model can be cut at fewer positions.
    """
    possible = [p for p in range(1, len(graph.nodes)) if not graph.obstacle(p)]
    if len(possible) < modules - 1:
        raise ValueError(
            f"`modules` must be at most {len(possible) + 1}, since the model can be cut at "
            f"{len(possible)} places. Received: modules={modules}"
        )
    until = np.concatenate([[0], np.cumsum(seconds)])
    unit = max(until[-1] / modules * _LIKE, 1e-12)
    bytes_at = {place: _bytes(graph.crossing(place)) for place in possible}

    @functools.cache
    def best(first: int, count: int) -> tuple[int, int, tuple[int, ...]] | None:
        """Return the best cuts of the nodes from `first`: slowest module, bytes, positions."""
        if count == 1:
            return round((until[-1] - until[first]) / unit), 0, ()
        least = None
        for place in possible:
            rest = best(place, count - 1) if place > first else None
            if rest is None:
                continue
            slowest = max(round((until[place] - until[first]) / unit), rest[0])
            option = slowest, bytes_at[place] + rest[1], (place, *rest[2])
            least = option if least is None else min(least, option)
        return least

    result = best(0, modules)
    assert result is not None
    return list(result[2])


def _random(tensor: keras.KerasTensor, batch_size: int) -> tf.Tensor:
    shape = (batch_size, *tensor.shape[1:])
    if None in shape:
        raise ValueError(
            "The model must have inputs of known size for its layers to be timed. Received: an "
            f"input of shape {tuple(tensor.shape)}. Name the layers to cut after: cuts=[...]"
        )
    if tf.as_dtype(tensor.dtype).is_floating:
        return tf.random.stateless_normal(shape, (1, 2), dtype=tensor.dtype)
    return tf.zeros(shape, tensor.dtype)


def _seconds(node: Any, tensors: dict[int, tf.Tensor], model_inputs: set[int]) -> float:
    """Time a node, and add its outputs to `tensors`; the model's inputs are given by their ids."""
    sources = {id(tensor): tensors[id(tensor)] for tensor in node.input_tensors}
    weights = [v.value for v in getattr(node.operation, "trainable_variables", ())]
    snapshot = [(v, v.numpy()) for v in getattr(node.operation, "variables", ()) if not v.trainable]
    training = {"training": True} if getattr(node.operation, "_call_has_training_arg", 0) else {}

    def forward(inputs: dict[int, Any]) -> list[Any]:
        args, kwargs = node.arguments.fill_in(inputs)
        return keras.tree.flatten(node.operation(*args, **{**kwargs, **training}))

    @tf.function
    def forward_and_backward(values: list[Any]) -> list[Any]:
        inputs = dict(zip(sources, values, strict=True))
        floats = [x for i, x in inputs.items() if x.dtype.is_floating and i not in model_inputs]
        with tf.GradientTape() as tape:
            tape.watch(floats)
            outputs = [o for o in forward(inputs) if o.dtype.is_floating]
        gradients = tape.gradient(outputs, [*weights, *floats]) if outputs else []
        # One number that depends on all results, so that all are computed and none is copied.
        updated = [w - g for w, g in zip(weights, gradients, strict=False) if g is not None]
        results = [*updated, *(g for g in gradients[len(weights) :] if g is not None)]
        parts = [tf.reduce_max(tf.cast(result, tf.float32)) for result in results or outputs]
        return [tf.add_n(parts)] if parts else []

    seconds = _timed(forward_and_backward, list(sources.values()), _REPEATS)
    tensors.update(zip(map(id, node.outputs), forward(sources), strict=True))
    for variable, value in snapshot:  # moving averages and seeds
        variable.assign(value)
    return seconds


def _timed(
    function: Callable[[list[tf.Tensor]], list[tf.Tensor]], values: list[tf.Tensor], repeats: int
) -> float:
    """Return the least time of a call, the one that other programs disturb least."""
    function(values)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for result in function(values):
            result.numpy()
        times.append(time.perf_counter() - begin)
    return min(times)


def _bytes(tensors: list[keras.KerasTensor]) -> int:
    """Return the bytes of one example."""
    return sum(
        int(np.prod([dim or 1 for dim in t.shape[1:]])) * tf.as_dtype(t.dtype).size for t in tensors
    )
