"""What would hang ranks, or let them train different models in silence, found early.

Every check is an exchange in which all ranks see what all ranks have, so that all of them raise or
none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from ringar.collectives import allgather, allgather_object
from ringar.collectives.call import Call
from ringar.collectives.digest import digest
from ringar.errors import MismatchError
from ringar.job.process_sets import or_all
from ringar.keras.optimizer import is_distributed
from ringar.sharding import examples
from ringar.sharding.cut import cut_of
from ringar.sharding.lineage import check_outputs

# What errors say of the exchange in which ranks were found to differ.
_START = Call("allgather_object", name="start of training")
_WEIGHTS = Call("allgather", name="check of weights")


def check_start(model: Any, params: dict[str, Any], process_set: Any = None) -> None:
    """Check, when training begins, that the ranks will go through the same collectives.

    Args:
        model: the compiled model.
        params: what Keras told its callbacks: the number of steps and epochs.
        process_set: the ranks concerned; by default all.

    Raises:
        ValueError: on every rank, if the optimizer reduces nothing, steps, epochs or variables
            differ, or a split is not ended.
    """
    check_outputs(model)
    if or_all(process_set).size() == 1:
        return
    ranks = allgather_object(_describe(model, params), name=_START.name, process_set=process_set)
    _require(
        [("yes" if mine["reduces"] else "no") for mine in ranks],
        lambda values: "no" not in values,
        "the model to be compiled with optimizer=ringar.DistributedOptimizer(...) on every rank",
        "Without it, ranks train different models.",
    )
    require_equal(
        [mine["steps"] for mine in ranks],
        "number of steps per epoch",
        "Shard the data with ringar.data.shard, or pass `steps_per_epoch` to `fit`.",
    )
    require_equal(
        [mine["epochs"] for mine in ranks],
        "number of epochs",
        "Pass the same `epochs` and `initial_epoch` to `fit` on every rank.",
    )
    if len({len(mine["weights"]) for mine in ranks}) > 1:
        require_equal(
            [len(mine["weights"]) for mine in ranks],
            "number of weights",
            "Build the same model everywhere.",
        )
    for index, weights in enumerate(zip(*(mine["weights"] for mine in ranks), strict=True)):
        require_equal(
            weights, f"shape and dtype of weight {index}", "Build the same model everywhere."
        )


def check_weights(model: Any, process_set: Any = None) -> None:
    """Check that the trainable weights are the same on all ranks, bit by bit.

    Args:
        model: a built model.
        process_set: the ranks concerned; by default all.

    Raises:
        MismatchError: on every rank, with the weights that differ.
    """
    if or_all(process_set).size() == 1:
        return
    variables = list(model.trainable_variables)
    own = [digest([keras.ops.convert_to_numpy(variable)]) for variable in variables]
    sums = np.asarray(
        allgather(np.asarray([own], np.int64), name=_WEIGHTS.name, process_set=process_set)
    )
    different = [v.path for v, its in zip(variables, sums.T, strict=True) if not _is_same(v, its)]
    if different:
        more = f" and {len(different) - 5} more" if len(different) > 5 else ""
        raise MismatchError(
            _WEIGHTS.refusal(
                "the same weights on every rank",
                f"other values of {', '.join(different[:5])}{more}",
                "Every rank must begin with the same weights (ringar.callbacks.Distributed() sees "
                "to it) and apply reduced gradients only; callbacks that restore weights by "
                "metrics, such as EarlyStopping, must come after ringar.callbacks.Distributed() in "
                "the list.",
            )
        )


def _is_same(variable: Any, of_ranks: np.ndarray) -> bool:
    """Return whether ranks that must have the same value have it."""
    cut = cut_of(variable)
    if cut is None:
        return bool((of_ranks == of_ranks[0]).all())
    of_groups = of_ranks.reshape(cut.grid.data, cut.grid.model)
    return bool((of_groups == of_groups[0]).all())


def check_examples(model: Any) -> None:
    """Check that the ranks of each model group were fed the same first batch. Collective.

    Args:
        model: a built model, whose layers keep digests if they are split.

    Raises:
        ValueError: on every rank, if they were not.
    """
    digests, grid = _digests(model)
    if grid is not None:
        examples.check(digests, grid)


def reset_examples(model: Any) -> None:
    """Have the layers take the digest of the next batch."""
    for _, its in _digests(model)[0]:
        its.reset()


def _digests(model: Any) -> tuple[list[tuple[str, examples.Digest]], Any]:
    layers = [x for x in model._flatten_layers() if getattr(x, "digest", None) is not None]
    return [(x.name, x.digest) for x in layers], layers[0].grid if layers else None


def _describe(model: Any, params: dict[str, Any]) -> dict[str, Any]:
    # A train_step of one's own may reduce its gradients with a DistributedGradientTape.
    own_step = type(model).train_step is not keras.Model.train_step
    return {
        "reduces": is_distributed(model.optimizer) or own_step,
        "steps": params.get("steps"),
        "epochs": params.get("epochs"),
        "weights": [f"{w.dtype}{list(w.shape)}" for w in model.weights] if model.built else [],
    }


def require_equal(values: Sequence[Any], what: str, remedy: str) -> None:
    """Check that `values`, one of each rank, are equal.

    Args:
        values: the same on every rank, so that all raise or none.
        what: "number of steps", for example.
        remedy: what to do; sentences.

    Raises:
        ValueError: if they are not.
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
