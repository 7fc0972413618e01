"""Checks for differences between ranks that would hang them or make them train different models.

In every check each rank receives the values of all ranks, so that either all ranks raise or none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from ringar.collectives import agree, allgather, allgather_object
from ringar.collectives.call import Call
from ringar.errors import MismatchError
from ringar.job import place
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import description, fitting, share
from ringar.keras.batch_normalization import SyncBatchNormalization
from ringar.keras.optimizer import grid_of, is_distributed
from ringar.keras.state import State
from ringar.keras.tuning import options
from ringar.sharding import examples, pixelwise
from ringar.sharding.grid import Grid
from ringar.sharding.lineage import check_outputs

_CALLER = "ringar.callbacks.Distributed"
_WEIGHTS = Call("allgather", name="check of weights")

_REMEDIES = {
    "number of steps per epoch": "Shard the data with ringar.data.shard(data, "
    'remainder="drop"), or pass `steps_per_epoch` to `fit`.',
    "initial epoch": "Pass the same `initial_epoch` to `fit` on every rank: broadcast it from the "
    "rank that has found it (ringar.broadcast_object).",
    "number of epochs": "Pass the same `epochs` and `initial_epoch` to `fit` on every rank.",
    "options of Autotune": "Set the variables on every rank, as ringarrun --autotune does.",
    "exchange": "Make the optimizer distributed by the same function, with the same arguments, on "
    "every rank.",
    "optimizer": "Compile the model with the same optimizer on every rank. Only its learning rate "
    "may differ.",
    "loss": "Compile the model with the same loss on every rank.",
    "dtype_policy": "Set the same dtype policy on every rank before the model is made.",
    "number of weights": "Build the same model everywhere.",
    "weight": "Build the same model everywhere, and freeze the same layers.",
}
"""Advice, by the beginning of the path of the setting that differs."""

_OF_A_STEP = (
    " The train_step of this model must reduce every gradient that moves weights, even if it moves "
    "them back, as SAM does: take it with a ringar.DistributedGradientTape, and restore weights "
    "from copies (docs/training.md has the recipe)."
)


def check_start(
    model: keras.Model, params: dict[str, Any], process_set: ProcessSet | None = None
) -> list[int | None]:
    """Check, when training begins, that the ranks will run the same collectives.

    Args:
        model: the compiled model.
        params: Keras' parameters for callbacks: the number of steps and epochs.
        process_set: the ranks concerned; by default all.

    Returns:
        The number of steps of an epoch on each rank, None where it is not known.

    Raises:
        MismatchError: on every rank, if the optimizer is not distributed, or leaves ranks of a grid
            to themselves, or does not know the grid, if settings of training or variables differ,
            or if steps differ and layers communicate.
        ValueError: a split is not ended.
    """
    check_outputs(model)
    pixelwise.check_outputs(model)
    ranks = or_all(process_set)
    if ranks.size() == 1:
        return [params.get("steps")]
    gathered = allgather_object(
        (_Answers.of(model, params), describe(model, params)), name=_CALLER, process_set=process_set
    )
    answers_of_ranks, described = zip(*gathered, strict=True)
    for field, expected, remedy in _CONDITIONS:
        values = [getattr(answers, field) for answers in answers_of_ranks]
        if any(value != "yes" for value in values):
            received = agree.groups(values, ranks.ranks)
            raise MismatchError(
                f"rank {place.rank()} | {_CALLER}: expected {expected}; received{received}{remedy}"
            )
    agree.compare(described, caller=_CALLER, remedy=_remedy_of(model), ranks=ranks.ranks)
    return [answers.steps for answers in answers_of_ranks]


@dataclass(frozen=True)
class _Answers:
    """Hold the answers of a rank: "yes", or the thing that it has instead.

    Attributes:
        steps: the number of steps of an epoch, None where it is not known.
        is_distributed: whether the model is compiled with a distributed optimizer.
        combines: whether gradients are combined in every step, where layers need that.
        knows_grid: whether the optimizer knows the grid of the model's layers.
    """

    steps: int | None
    is_distributed: str
    combines: str
    knows_grid: str

    @classmethod
    def of(cls, model: keras.Model, params: dict[str, Any]) -> _Answers:
        """Return the answers of this rank."""
        # A custom train_step may reduce its gradients with a DistributedGradientTape.
        has_custom_step = type(model).train_step is not keras.Model.train_step
        reduces = any(map(is_distributed, share.optimizers_of(model))) or has_custom_step
        in_every_step = all(e.period.in_every_step for e in share.exchanges_of(model))
        return cls(
            params.get("steps"),
            "yes" if reduces else "no",
            "yes" if in_every_step or not _layers_over_ranks(model) else "no",
            _layer_without_grid(model) or "yes",
        )


_CONDITIONS = (
    (
        "is_distributed",
        "the model to be compiled with optimizer=ringar.DistributedOptimizer(...) on every rank",
        "Without it, ranks train different models. A file, a config or a pickle holds the plain "
        "optimizer: load a file with ringar.load_model, and compile a model that was cloned or "
        "copied again, with optimizer=ringar.DistributedOptimizer(model.optimizer).",
    ),
    (
        "combines",
        "gradients that are combined in every step",
        "Each rank of a grid has a part of the gradients of its layers: compile the model with "
        "optimizer=ringar.DistributedOptimizer(..., grid=grid).",
    ),
    (
        "knows_grid",
        "an optimizer that knows the grid of the model's layers",
        "The model has a layer on a grid, whose ranks work on the same examples and must draw the "
        "same dropout: compile it with optimizer=ringar.DistributedOptimizer(..., grid=grid), and "
        "shard the data with ringar.data.shard(data, grid=grid).",
    ),
)
"""Conditions that hold on every rank, and the remedy if one does not."""


def describe(model: keras.Model, params: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that must be the same on all ranks when training begins.

    Args:
        model: the compiled model.
        params: Keras' parameters for callbacks.
    """
    steps = {}
    if _layers_that_communicate(model):
        steps["number of steps per epoch"] = params.get("steps")
    return {
        **steps,
        "number of epochs": params.get("epochs"),
        "initial epoch": getattr(model, fitting.INITIAL_EPOCH, 0),
        "options of Autotune": options.description(os.environ) or "none",
        **description.model(model),
    }


def _remedy_of(model: keras.Model) -> Callable[[str], str]:
    def remedy(path: str) -> str:
        advice = next(text for begin, text in _REMEDIES.items() if path.startswith(begin))
        if path in _REMEDIES and (layers := _layers_that_communicate(model)) and "steps" in path:
            return (
                f"The layers {', '.join(layers)} communicate in every step, so that no rank can do "
                f"without a batch. {advice}"
            )
        if path.startswith("weight "):
            weight = model.weights[int(path.split()[1])]
            return f"It is {weight.path} here. {advice}"
        return advice

    return remedy


def _layers_that_communicate(model: keras.Model) -> list[str]:
    layers = [
        layer.name
        for layer in model._flatten_layers()
        if isinstance(layer, SyncBatchNormalization) or getattr(layer, "grid", None) is not None
    ]
    return [*layers[:5], "…"] if len(layers) > 5 else layers


def check_weights(model: keras.Model, process_set: ProcessSet | None = None) -> None:
    """Check that the trainable weights are the same on all ranks, bit by bit.

    Args:
        model: a built model.
        process_set: the ranks concerned; by default all.

    Raises:
        MismatchError: on every rank, with the weights that differ.
    """
    if or_all(process_set).size() == 1:
        return
    state = State.of(model.trainable_variables)
    digests = np.asarray([state.digests()], np.int64)
    of_ranks = np.asarray(allgather(digests, name=_WEIGHTS.name, process_set=process_set))
    differences = state.that_differ(of_ranks.tolist())
    if differences.variables:
        raise MismatchError(
            _WEIGHTS.refusal(
                "the same weights on every rank",
                f"other values of {differences.names}",
                "Every rank must begin with the same weights (ringar.callbacks.Distributed() sees "
                "to it) and apply reduced gradients only. Give every rank the callbacks that set "
                "weights; those that do so by metrics, such as EarlyStopping, must come after "
                "ringar.callbacks.Distributed() in the list."
                + (_OF_A_STEP if type(model).train_step is not keras.Model.train_step else ""),
            )
        )


def check_examples(model: keras.Model) -> None:
    """Check that the ranks of each model group were fed the same first batch. Collective.

    Args:
        model: a built model; its split layers keep the digests.

    Raises:
        ValueError: on every rank, if the batches differ.
    """
    digests, grid = _digests(model)
    if grid is not None:
        examples.check(digests, grid)


def reset_examples(model: keras.Model) -> None:
    """Make the layers take the digest of the next batch."""
    for _, digest in _digests(model)[0]:
        digest.reset()


def _digests(model: keras.Model) -> tuple[list[tuple[str, examples.Digest]], Any]:
    layers = [x for x in model._flatten_layers() if getattr(x, "digest", None) is not None]
    return [(x.name, x.digest) for x in layers], layers[0].grid if layers else None


def _layers_over_ranks(model: keras.Model) -> list[keras.layers.Layer]:
    pairs = [(layer, getattr(layer, "grid", None)) for layer in model._flatten_layers()]
    return [layer for layer, grid in pairs if isinstance(grid, Grid) and grid.model > 1]


def _layer_without_grid(model: keras.Model) -> str:
    """Return a text on a layer whose grid a distributed optimizer does not know; "" if none."""
    layers = _layers_over_ranks(model)
    # A custom train_step may give the grid to a DistributedGradientTape.
    grids = [
        grid_of(optimizer) for optimizer in share.optimizers_of(model) if is_distributed(optimizer)
    ]
    return f"none for {pixelwise.describe(layers[0])}" if layers and None in grids else ""
