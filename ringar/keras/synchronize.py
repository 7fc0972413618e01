"""The communication of the callbacks: state at the start, metrics and a stop at an epoch's end."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from ringar.collectives import allgather
from ringar.collectives.call import Call
from ringar.errors import MismatchError
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import layer_state
from ringar.keras.state import State


def broadcast_model(
    model: keras.Model, root_rank: int, process_set: ProcessSet | None = None
) -> None:
    """Broadcast the weights of `model` and the state of its optimizers from `root_rank`.

    Args:
        model: a Keras model that has weights. If it is built, its optimizer is built, too; other
            optimizers are found as attributes of the model, and make their state with their first
            step.
        root_rank: the rank whose state is taken.
        process_set: the ranks concerned; by default all.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built and model.built:
        optimizer.build(model.trainable_variables)
    if or_all(process_set).size() > 1:
        State.of_model(model).broadcast(root_rank, process_set)
        layer_state.refresh(model)


def average_logs(logs: dict[str, float] | None, process_set: ProcessSet | None = None) -> None:
    """Replace every number in `logs` by its average over the ranks, in place."""
    keys = _numbers(logs)
    if logs is None or not keys or or_all(process_set).size() == 1:
        return
    rows = _gather([logs[key] for key in keys], "metrics:" + ",".join(keys), process_set)
    _set_averages(logs, keys, rows)


def agree(model: keras.Model, process_set: ProcessSet | None = None, check: bool = True) -> None:
    """Agree whether to stop.

    Args:
        model: the model that is trained; `stop_training` is set if any rank has set it.
        process_set: the ranks concerned; by default all.
        check: compare the learning rates, too.

    Raises:
        MismatchError: on every rank, if the learning rates differ.
    """
    if or_all(process_set).size() == 1:
        return
    values = [_learning_rate(model), bool(model.stop_training)]
    rates, stops = _gather(values, "end of epoch", process_set).T
    if check and not np.array_equal(rates, np.full_like(rates, rates[0]), equal_nan=True):
        raise MismatchError(
            Call("allgather", name="end of epoch").refusal(
                "the same learning rate on every rank",
                ", ".join(f"{rate:g} (rank {rank})" for rank, rate in enumerate(rates)),
                "Give every rank the callback that changes it. One that decides by metrics must "
                "come after ringar.callbacks.Distributed() in the list, where metrics are those "
                "of all ranks.",
            )
        )
    model.stop_training = bool(stops.any())


def _numbers(logs: dict[str, float] | None) -> list[str]:
    return sorted(
        key for key, value in (logs or {}).items() if isinstance(value, int | float | np.number)
    )


def _gather(values: list[Any], name: str, process_set: ProcessSet | None) -> np.ndarray:
    # The name has the keys: if ranks have different metrics, the error shows them.
    row = np.asarray([values], dtype=np.float64)
    return np.asarray(allgather(row, name=name, process_set=process_set))


def _set_averages(logs: dict[str, Any], keys: list[str], rows: np.ndarray) -> None:
    for key, of_ranks in zip(keys, rows.T, strict=False):
        # Rounding would change a number that is the same on all ranks.
        is_equal = (of_ranks == of_ranks[0]).all()
        logs[key] = float(of_ranks[0] if is_equal else of_ranks.mean())


def _learning_rate(model: keras.Model) -> float:
    try:
        return float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))
    except AttributeError:
        return float("nan")  # no optimizer, or one with more than one learning rate
