"""Checks for differences between ranks that would hang them or make them train different models.

In every check each rank receives the values of all ranks, so that either all ranks raise or none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from ringar.collectives import allgather, allgather_object
from ringar.collectives.call import Call
from ringar.errors import MismatchError
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import share
from ringar.keras.batch_normalization import SyncBatchNormalization
from ringar.keras.optimizer import grid_of, is_distributed
from ringar.keras.state import State
from ringar.keras.tuning import options
from ringar.sharding import examples, pixelwise
from ringar.sharding.cut import cut_of
from ringar.sharding.grid import Grid
from ringar.sharding.lineage import check_outputs

# The collectives of the checks, for their errors.
_START = Call("allgather_object", name="start of training")
_WEIGHTS = Call("allgather", name="check of weights")


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
        ValueError: on every rank, if the optimizer is not distributed, or leaves ranks of a grid
            to themselves, or does not know the grid, if epochs or variables differ, if steps differ
            and layers communicate, or if a split is not ended.
    """
    check_outputs(model)
    pixelwise.check_outputs(model)
    if or_all(process_set).size() == 1:
        return [params.get("steps")]
    ranks = allgather_object(_describe(model, params), name=_START.name, process_set=process_set)
    _require(
        [("yes" if one["reduces"] else "no") for one in ranks],
        lambda values: "no" not in values,
        "the model to be compiled with optimizer=ringar.DistributedOptimizer(...) on every rank",
        "Without it, ranks train different models. A file, a config or a pickle holds the plain "
        "optimizer: load a file with ringar.load_model, and compile a model that was cloned or "
        "copied again, with optimizer=ringar.DistributedOptimizer(model.optimizer).",
    )
    steps = [one["steps"] for one in ranks]
    if layers := _layers_that_communicate(model):
        require_equal(
            steps,
            "number of steps per epoch",
            f"The layers {', '.join(layers)} communicate in every step, so that no rank can do "
            'without a batch. Shard the data with ringar.data.shard(data, remainder="drop"), or '
            "pass `steps_per_epoch` to `fit`.",
        )
    _require(
        [("no" if one["alone"] else "yes") for one in ranks],
        lambda values: "no" not in values,
        "gradients that are combined in every step",
        "Each rank of a grid has a part of the gradients of its layers: compile the model with "
        "optimizer=ringar.DistributedOptimizer(..., grid=grid).",
    )
    _require(
        [one["gridless"] or "a grid" for one in ranks],
        lambda values: set(values) == {"a grid"},
        "an optimizer that knows the grid of the model's layers",
        "The model has a layer on a grid, whose ranks work on the same examples and must draw the "
        "same dropout: compile it with optimizer=ringar.DistributedOptimizer(..., grid=grid), and "
        "shard the data with ringar.data.shard(data, grid=grid).",
    )
    require_equal(
        [one["epochs"] for one in ranks],
        "number of epochs",
        "Pass the same `epochs` and `initial_epoch` to `fit` on every rank.",
    )
    require_equal(
        [one["exchange"] or "none" for one in ranks],
        "sharding",
        "Pass the same `shard`, `shard_ranks`, `offload` and `grid` to ringar.DistributedOptimizer "
        "on every rank.",
    )
    require_equal(
        [one["autotune"] or "none" for one in ranks],
        "options of Autotune",
        "Set the variables on every rank, as ringarrun --autotune does.",
    )
    if len({len(one["weights"]) for one in ranks}) > 1:
        require_equal(
            [len(one["weights"]) for one in ranks],
            "number of weights",
            "Build the same model everywhere.",
        )
    for index, weights in enumerate(zip(*(one["weights"] for one in ranks), strict=True)):
        require_equal(
            weights, f"shape and dtype of weight {index}", "Build the same model everywhere."
        )
    return steps


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
    own = np.asarray([state.digests()], np.int64)
    of_ranks = np.asarray(allgather(own, name=_WEIGHTS.name, process_set=process_set))
    different = state.that_differ(of_ranks.tolist())
    if different.variables:
        raise MismatchError(
            _WEIGHTS.refusal(
                "the same weights on every rank",
                f"other values of {different.names}",
                "Every rank must begin with the same weights (ringar.callbacks.Distributed() sees "
                "to it) and apply reduced gradients only; callbacks that restore weights by "
                "metrics, such as EarlyStopping, must come after ringar.callbacks.Distributed() in "
                "the list.",
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
    for _, its in _digests(model)[0]:
        its.reset()


def _digests(model: keras.Model) -> tuple[list[tuple[str, examples.Digest]], Any]:
    layers = [x for x in model._flatten_layers() if getattr(x, "digest", None) is not None]
    return [(x.name, x.digest) for x in layers], layers[0].grid if layers else None


def _describe(model: keras.Model, params: dict[str, Any]) -> dict[str, Any]:
    # A custom train_step may reduce its gradients with a DistributedGradientTape.
    has_custom_step = type(model).train_step is not keras.Model.train_step
    exchanges = share.exchanges_of(model)
    return {
        "reduces": any(map(is_distributed, share.optimizers_of(model))) or has_custom_step,
        "steps": params.get("steps"),
        "epochs": params.get("epochs"),
        "exchange": ", ".join(one.description for one in exchanges),
        "alone": _is_over_ranks(model) and not all(one.in_every_step for one in exchanges),
        "gridless": _layer_without_grid(model),
        "autotune": options.description(os.environ),
        "weights": [_type_of(w) for w in model.weights],
    }


def _is_over_ranks(model: keras.Model) -> bool:
    return bool(_layers_over_ranks(model))


def _layers_over_ranks(model: keras.Model) -> list[keras.layers.Layer]:
    found = [(layer, getattr(layer, "grid", None)) for layer in model._flatten_layers()]
    return [layer for layer, grid in found if isinstance(grid, Grid) and grid.model > 1]


def _layer_without_grid(model: keras.Model) -> str:
    """Return words for a layer on a grid that a distributed optimizer does not know, or none."""
    layers = _layers_over_ranks(model)
    # A custom train_step may give the grid to a DistributedGradientTape.
    grids = [grid_of(one) for one in share.optimizers_of(model) if is_distributed(one)]
    return f"none for {pixelwise.describe(layers[0])}" if layers and None in grids else ""


def _type_of(variable: keras.Variable) -> str:
    """Return the dtype of a variable, and what its shape has in common on all ranks."""
    cut, shape = cut_of(variable), list(variable.shape)
    uneven = () if cut is None else cut.uneven
    sizes = ["*" if axis in uneven else size for axis, size in enumerate(shape)]
    return f"{variable.dtype}[{', '.join(map(str, sizes))}]"


def require_equal(values: Sequence[Any], what: str, remedy: str) -> None:
    """Check that `values`, one of each rank, are equal.

    Args:
        values: the gathered values, the same list on every rank.
        what: the name of the value, "number of steps", for example.
        remedy: advice for the error, in sentences.

    Raises:
        ValueError: if they are not equal.
    """
    _require(values, _all_equal, f"the same {what} on every rank", remedy)


def _all_equal(values: Sequence[Any]) -> bool:
    return all(value == values[0] for value in values)


def _require(
    values: Sequence[Any], holds: Callable[[Sequence[Any]], bool], expected: str, remedy: str
) -> None:
    if not holds(values):
        received = ", ".join(f"{value} (rank {rank})" for rank, value in enumerate(values))
        raise ValueError(_START.refusal(expected, received, remedy))
