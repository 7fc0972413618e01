"""Checks of a stack: layers that cannot be part of one, arguments, and ranks that disagree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from ringar.collectives import allgather_object
from ringar.keras.checks import require_equal
from ringar.parallel.scan.layers import ScanGRU, ScanLSTM, ScanSimpleRNN

KINDS = (ScanSimpleRNN, ScanGRU, ScanLSTM)


def check_layers(layers: object, chunk: object) -> None:
    """Refuse arguments and layers that do not make a stack.

    Raises:
        ValueError: with the place and the name of the layer.
    """
    if not isinstance(layers, (list, tuple)) or not layers:
        raise ValueError(
            "`layers` must be a list of ringar.layers.ScanSimpleRNN, ScanGRU and ScanLSTM, at "
            f"least one. Received: {layers!r}"
        )
    whole = isinstance(chunk, int) and not isinstance(chunk, bool)
    if chunk is not None and (not whole or int(str(chunk)) < 1):
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
    wrong = [
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
    for what, is_wrong, remedy in wrong:
        if is_wrong:
            raise ValueError(
                f"Layer {place} of a Wavefront, {layer.name}, must not have {what}: {remedy}."
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


def check_states(states: Sequence[Any], expected: Sequence[int]) -> None:
    """Refuse initial states that do not fit the layers.

    Args:
        states: the user's tensors.
        expected: the units of each.
    """
    widths = [state.shape[-1] for state in states]
    if list(widths) != list(expected):
        raise ValueError(
            "`initial_state` must have the states of all layers, one after the other, (batch, "
            "units) each, and two for an LSTM, as `return_state=True` returns them. Expected "
            f"units: {list(expected)}. Received: {widths}"
        )


def check_ranks(description: dict[str, object]) -> None:
    """Compare what the ranks have built. Collective over all ranks.

    Raises:
        ValueError: on every rank, with what differs.
    """
    ranks = allgather_object(description, name="wavefront/description")
    names = list(dict.fromkeys(name for one in ranks for name in one))
    for name in names:
        require_equal(
            [one.get(name) for one in ranks],
            f"{name} of a Wavefront",
            "Build the same stack on every rank; each computes its own block of the layers.",
        )
