"""Checks of a stack: layers that cannot be part of one, arguments, and ranks that disagree."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ringar.collectives import allgather_object
from ringar.collectives.agree import compare
from ringar.parallel.scan.layers import ScanGRU, ScanLSTM, ScanSimpleRNN
from ringar.sharding.grid import Grid

KINDS = (ScanSimpleRNN, ScanGRU, ScanLSTM)


def check_layers(layers: object, chunk: Any) -> None:
    """Refuse arguments and layers that do not make a stack.

    Raises:
        ValueError: with the place and the name of the layer.
    """
    if not isinstance(layers, (list, tuple)) or not layers:
        raise ValueError(
            "`layers` must be a list of ringar.layers.ScanSimpleRNN, ScanGRU and ScanLSTM, at "
            f"least one. Received: {layers!r}"
        )
    is_wrong = isinstance(chunk, bool) or not isinstance(chunk, numbers.Integral) or chunk < 1
    if chunk is not None and is_wrong:
        raise ValueError(
            "`chunk` must be a number of steps, 1 or more, or None for ringar's choice. "
            f"Received: chunk={chunk!r}"
        )
    for place, layer in enumerate(layers):
        _check_layer(place, layer, place == len(layers) - 1)
    if len({id(layer) for layer in layers}) < len(layers):
        raise ValueError("`layers` must be different layers. Received: one of them twice.")
    if len({layer.compute_dtype for layer in layers}) > 1:
        raise ValueError(
            "`layers` must have one dtype. Received: "
            + ", ".join(f"{layer.name} of {layer.compute_dtype}" for layer in layers)
        )


def _check_layer(place: int, layer: Any, is_last: bool) -> None:
    if not isinstance(layer, KINDS):
        raise ValueError(
            "`layers` must be ringar.layers.ScanSimpleRNN, ScanGRU or ScanLSTM. "
            f"Received: layer {place} is a {type(layer).__name__}"
            f"{_name_of(layer)}. Keras' own layers have their weights: "
            "ringar.layers.ScanGRU.from_config(layer.get_config())."
        )
    faults = [
        ("return_sequences=False", not layer.return_sequences and not is_last,
         "only the last layer may have it: the next one reads all steps"),
        ("return_state=True", layer.return_state, "pass it to the Wavefront"),
        ("stateful=True", layer.stateful,
         "pass states on with the Wavefront's return_state and initial_state"),
        ("go_backwards=True", layer.go_backwards, "a wavefront goes forward"),
        ("a process_set", layer.process_set is not None,
         "here ranks share the layers, not the steps"),
        ("dropout for each gate or step", layer._steps_differ(),
         "give it neither recurrent_dropout nor implementation=1 with dropout"),
        ("an activity regularizer", layer.activity_regularizer is not None,
         "outputs between the layers are on no rank whole"),
    ]  # fmt: skip
    for option, is_wrong, remedy in faults:
        if is_wrong:
            raise ValueError(
                f"Layer {place} of a Wavefront, {layer.name}, must not have {option}: {remedy}."
            )


def _name_of(layer: object) -> str:
    return f' "{layer.name}"' if isinstance(layer, keras.layers.Layer) else ""


def check_inputs(shape: Sequence[int | None]) -> None:
    """Refuse inputs that are no sequences of a known number of features."""
    if len(shape) != 3 or shape[-1] is None:
        raise ValueError(
            "The inputs of a Wavefront must be sequences, (batch, steps, features), of a known "
            f"number of features. Received: shape {tuple(shape)}"
        )


def check_kernel(place: int, layer: Any, features: int | None) -> None:
    """Refuse a layer that was built for other inputs than it gets in the stack."""
    rows = layer.cell.kernel.shape[0]
    if rows != features:
        raise ValueError(
            f"Layer {place} of a Wavefront, {layer.name}, must have a kernel for {features} "
            f"features, which its inputs have. Received: a layer that was built for {rows}. Make "
            "a new one."
        )


def check_states(states: Sequence[tf.Tensor], batch: int | None, units: Sequence[int]) -> None:
    """Refuse initial states that do not fit the layers or the batch.

    Args:
        states: the user's tensors.
        batch: the number of examples, if it is known.
        units: the units of each state.
    """
    expected = [(batch, count) for count in units]
    shapes = [state.shape for state in states]
    if len(shapes) != len(expected) or not all(map(_fits, shapes, expected)):
        raise ValueError(
            "`initial_state` must have the states of all layers, one after the other, (batch, "
            "units) each, and two for an LSTM, as `return_state=True` returns them. Expected "
            f"shapes: {expected}. Received: {[tuple(shape) for shape in shapes]}"
        )


def check_mask(mask: tf.Tensor, batch: int | None, steps: int | None) -> None:
    """Refuse a mask that does not fit the inputs."""
    if not _fits(mask.shape, (batch, steps)):
        raise ValueError(
            "`mask` must have a value for each step of each example, (batch, steps). Expected "
            f"shape: {(batch, steps)}. Received: {tuple(mask.shape)}"
        )


def _fits(shape: tf.TensorShape, expected: tuple[int | None, ...]) -> bool:
    return bool(shape.is_compatible_with(tf.TensorShape(expected)))


def check_ranks(description: dict[str, object], shape: tuple[int | None, ...], grid: Grid) -> None:
    """Compare the stacks of the ranks. Collective over all ranks.

    Args:
        description: the properties that are the same on all ranks.
        shape: the shape of the inputs, which is the same on the ranks of a model group.
        grid: the grid.

    Raises:
        MismatchError: on every rank, with what differs.
    """
    where: dict[str, Any] = {
        "caller": "ringar.parallel.Wavefront",
        "remedy": "Build the same stack on every rank; each computes its own block of the layers.",
    }
    ranks = allgather_object((description, shape), name=where["caller"])
    compare([description_there for description_there, _ in ranks], **where)
    shapes = [{"shape of the inputs": str(description_there)} for _, description_there in ranks]
    for place in range(0, len(shapes), grid.model):
        group = range(place, place + grid.model)
        compare([shapes[rank] for rank in group], **where, ranks=group)
