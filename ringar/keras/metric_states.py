"""The states of a model's metrics: reading, adding over the ranks, and their results.

A state is the list of the values of a metric's variables. Metrics have unique names here, the same
on all ranks; Keras' own names may occur several times in a model with several outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from ringar.collectives import Sum, allreduce
from ringar.job.process_sets import ProcessSet

States = dict[str, list[np.ndarray]]
"""The state of each metric, by its unique name."""

Shapes = dict[str, list[tuple[int, ...]]]
"""The shapes of the state of each metric, by its unique name."""

Logs = dict[str, Any]
"""Numbers, and arrays of numbers, by their names."""


def metrics_of(model: keras.Model) -> dict[str, Any]:
    """Return the metrics of `model` by unique names.

    Args:
        model: a compiled model. Those of its metrics that Keras builds in the first step are
            missing before.
    """
    metrics: dict[str, Any] = {}
    count: Counter[str] = Counter()
    for entry in model.metrics:
        # `compile` puts the metrics that it is given into one of Keras' own.
        for metric in entry.metrics if type(entry).__name__ == "CompileMetrics" else [entry]:
            count[metric.name] += 1
            metrics[f"{metric.name}:{count[metric.name]}"] = metric
    return metrics


def states_of(model: keras.Model) -> States:
    """Return the states of all metrics of `model`."""
    return {
        name: [np.array(keras.ops.convert_to_numpy(v)) for v in metric.variables]
        for name, metric in metrics_of(model).items()
    }


def results_of(model: keras.Model, states: States) -> Logs:
    """Return the results that the metrics of `model` have in the states that are passed.

    Args:
        model: a model whose metrics are built.
        states: a state for each metric. The variables keep their values.
    """
    metrics = metrics_of(model)
    values = [
        (variable, np.asarray(value, dtype=keras.ops.convert_to_numpy(variable).dtype))
        for name, state in states.items()
        for variable, value in zip(metrics[name].variables, state, strict=True)
    ]
    with keras.StatelessScope(values):
        return flatten(model.get_metrics_result())


def flatten(logs: Mapping[str, float]) -> Logs:
    """Return `logs` as Keras does: without nested dictionaries, floats and arrays for tensors."""
    flat: Logs = {}
    for key, value in logs.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value))
        elif hasattr(value, "dtype"):
            flat[key] = _as_keras_returns(keras.ops.convert_to_numpy(value))
        else:
            flat[key] = value
    return flat


def _as_keras_returns(array: np.ndarray) -> Any:
    try:
        return float(array)  # whether an array of one element is a number depends on NumPy
    except TypeError:
        return array


def added(states: States, shapes: Shapes, ranks: ProcessSet) -> States:
    """Return the sums of the states of all ranks, in float64. Collective.

    Args:
        states: the states of this rank, which may lack some.
        shapes: the shapes of all states to add, the same on every rank.
        ranks: the ranks.
    """
    vector = [
        np.ravel(value).astype(np.float64)
        for name, state_shapes in shapes.items()
        for value in states.get(name) or [np.zeros(shape) for shape in state_shapes]
    ]
    flat = np.concatenate([np.zeros(0), *vector])
    if flat.size:
        flat = np.asarray(allreduce(flat, Sum, name="metrics/states", process_set=ranks))
    parts = iter(np.split(flat, np.cumsum([part.size for part in vector])))
    return {
        name: [next(parts).reshape(shape) for shape in state_shapes]
        for name, state_shapes in shapes.items()
    }


def refusal_of(metric: Any) -> tuple[str, str] | None:
    """Return the expected and the received state of a metric; None if it can be combined."""
    # Keras' own metrics have sums only, and no boolean variables.
    if type(metric).__module__.startswith("keras.") or hasattr(metric, "combine_states"):
        return None
    for variable in metric.variables:
        if variable.aggregation in ("mean", "only_first_replica"):
            received = f'aggregation="{variable.aggregation}"'
        elif keras.backend.standardize_dtype(variable.dtype) == "bool":
            received = "dtype bool"
        else:
            continue
        expected = (
            f"a state of metric '{metric.name}' ({type(metric).__name__}) that is a sum over "
            "examples"
        )
        return expected, f"variable '{variable.name}' with {received}"
    return None
