"""Metrics over the data of all ranks, in `fit` and in `evaluate`.

The state of a metric, not its result, is combined. The state of almost every metric is made of sums
over examples: a mean is a total and a count, an AUC four histograms. The sums of all ranks have the
result of one process with the batches of all ranks. The mean of the ranks' results does not: it is
wrong for an AUC or a root mean square, and for ranks with different numbers of examples.

The steps of an evaluation run no collective. At the end each rank describes its metrics to the
others, and one allreduce adds the states. A rank may have had no batch at all. Its metrics, which
Keras builds in the first step, may not exist then, and it takes the results of another rank.

The variables keep the state of their rank, from which Keras goes on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from ringar.collectives import allgather_object
from ringar.collectives.agree import compare
from ringar.collectives.call import Call
from ringar.errors import UnsupportedError
from ringar.job import log, place
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras.metric_states import (
    Logs,
    Shapes,
    States,
    added,
    flatten,
    metrics_of,
    refusal_of,
    results_of,
    states_of,
)
from ringar.keras.optimizer import grid_of
from ringar.keras.zero import forward
from ringar.sharding.cut import cut_of

_AT_THE_END = "_get_metrics_result_or_logs"
"""The method that Keras calls for the results, once, after the last step of an evaluation."""

_IN_ORDER = "_flatten_metrics_in_order"
"""The method that makes the list that `evaluate` returns."""


_log = log.logger(__name__)
_warned: set[str] = set()


class Metrics:
    """Combine the metrics of a model over the ranks, for a callback.

    Args:
        process_set: the ranks that train together; by default all.
    """

    def __init__(self, process_set: ProcessSet | None = None) -> None:
        self._process_set = process_set
        self._before_evaluation: States | None = None

    def begin_training(self, model: keras.Model) -> None:
        """Forget an evaluation that an exception has ended before its result.

        Args:
            model: the compiled model.
        """
        self._before_evaluation = None
        vars(model).pop(_AT_THE_END, None)

    def check(self, model: keras.Model) -> None:
        """Check that the states of the metrics can be combined, as soon as they exist.

        Args:
            model: the compiled model.

        Raises:
            UnsupportedError: if they cannot, on every rank that has the metric.
        """
        if or_all(self._process_set).size() > 1:
            _refuse(map(refusal_of, metrics_of(model).values()), Call("metrics"))

    def begin_evaluation(self, model: keras.Model) -> None:
        """Keep the state of the epoch, which Keras resets, and combine this evaluation's results.

        Args:
            model: the compiled model.
        """
        if or_all(self._process_set).size() == 1:
            return
        self._before_evaluation = states_of(model)
        original = getattr(type(model), _AT_THE_END)

        def combined(logs: Any) -> Logs:
            vars(model).pop(_AT_THE_END, None)
            forward.leave(model)
            # After no step there are no logs, and the original would fail if nothing is built.
            flat = flatten(original(model, logs)) if logs else {}
            return {**flat, **self._combine(model, flat, states_of(model), "evaluation")}

        # Keras calls callbacks with a copy of the results that `evaluate` returns, too late to
        # change them. Its own __setattr__ would track the attribute.
        object.__setattr__(model, _AT_THE_END, combined)

    def end_epoch(self, model: keras.Model, logs: Logs) -> None:
        """Replace this rank's training metrics in `logs` by those of all ranks, in place.

        Args:
            model: the compiled model.
            logs: the numbers of the epoch. Those of its validation are combined already.
        """
        if or_all(self._process_set).size() == 1:
            return
        before, self._before_evaluation = self._before_evaluation, None
        training_logs = {key: value for key, value in logs.items() if not key.startswith("val_")}
        is_evaluated = len(training_logs) < len(logs)
        states = before if before is not None and is_evaluated else states_of(model)
        logs.update(self._combine(model, training_logs, states, "epoch"))

    def _combine(self, model: keras.Model, logs: Logs, states: States, end_of: str) -> Logs:
        return combine(model, logs, states, f"end of {end_of}", self._process_set)


def combine(
    model: keras.Model,
    logs: Logs,
    states: States,
    name: str,
    process_set: ProcessSet | None = None,
) -> Logs:
    """Return the numbers in `logs` for the data of all ranks. Collective.

    A number that is a result of the model's metrics is replaced by the result of the combined
    states. Any other number is averaged, with a warning if the ranks have different ones.

    Args:
        model: the compiled model.
        logs: this rank's numbers; empty if it has had no data.
        states: the states of this rank's metrics that belong to `logs`.
        name: in errors.
        process_set: the ranks concerned; by default all.

    Raises:
        MismatchError: on every rank, if ranks have different metrics.
        UnsupportedError: on every rank, if a state cannot be combined, or does not give the result.
    """
    ranks = or_all(ranks_with_data(model, process_set))
    report = _report(model, logs, states)
    reports: list[_Report] = allgather_object(report, name=name, process_set=ranks)
    call = Call("allgather_object", name=name)
    shapes = _check(reports, call, ranks)
    total = _combined(model, states, shapes, reports, ranks)
    has_all = {name: report.shapes.get(name) for name in shapes} == shapes
    results = results_of(model, total) if has_all else {}
    # A rank may lack a metric, and a metric may depend on more than its state.
    results = _agreed(allgather_object(results, name=name, process_set=ranks), call)
    if not logs:
        _return_in_order(model, next((r.order for r in reports if r.order), []))
    return {key: _number(key, reports, results) for key in _keys(r.logs for r in reports)}


def ranks_with_data(model: keras.Model, process_set: ProcessSet | None) -> ProcessSet | None:
    """Return the ranks that have different examples: on a grid, those with the same part.

    Args:
        model: a model, compiled or not.
        process_set: the ranks that train together; None: all.
    """
    if process_set is not None:
        return process_set
    grid = grid_of(model.optimizer) if getattr(model, "optimizer", None) is not None else None
    cuts = (cut_of(variable) for variable in model.variables)
    grid = grid or next((cut.grid for cut in cuts if cut is not None), None)
    return grid.data_set if grid is not None else None


@dataclasses.dataclass
class _Report:
    """Describe the metrics of one rank to the others.

    Attributes:
        logs: its numbers; empty if it has had no data.
        same: for each number, the metrics' results that it equals.
        order: the names of the numbers in the order of the list that `evaluate` returns.
        shapes: the shapes of the metrics' states.
        gathered: the states of metrics that have a method `combine_states`.
        refusal: for a metric whose states cannot be combined, what was expected and received.
    """

    logs: Logs
    same: dict[str, list[str]]
    order: list[str]
    shapes: Shapes
    gathered: States
    refusal: tuple[str, str] | None


def _report(model: keras.Model, logs: Logs, states: States) -> _Report:
    logs = {key: value for key, value in logs.items() if np.asarray(value).dtype.kind in "biuf"}
    results = results_of(model, states) if logs else {}
    metrics = metrics_of(model)
    order = getattr(model, _IN_ORDER)({key: key for key in logs})  # a list, or the only one
    return _Report(
        logs=logs,
        same={key: _names(key, value, results) for key, value in logs.items()},
        order=[order] if isinstance(order, str) else order,
        shapes={name: [value.shape for value in state] for name, state in states.items()},
        gathered={k: state for k, state in states.items() if hasattr(metrics[k], "combine_states")},
        refusal=next(filter(None, map(refusal_of, metrics.values())), None),
    )


def _names(key: str, value: Any, results: Logs) -> list[str]:
    """Return the names of the results that a number equals: its own name, or else all others.

    A step that is compiled may round a result in another way.
    """
    if key in results and _are_close(value, results[key]):
        return [key]
    equal = [name for name, result in results.items() if _equal(value, result, nan=False)]
    return equal or [name for name, result in results.items() if _are_close(value, result)]


def _check(reports: Sequence[_Report], call: Call, ranks: ProcessSet) -> Shapes:
    """Check that the states of all ranks can be combined, and return their shapes."""
    _refuse((report.refusal for report in reports), call)
    shapes: Shapes = {}
    for report in reports:
        for name, state in report.shapes.items():
            shapes[name] = shapes.get(name) or state
    compare(
        [
            # A rank without data may lack metrics, and variables of metrics.
            {
                f"state of metric '{name}'": _known_state(report, name, state)
                for name, state in shapes.items()
            }
            for report in reports
        ],
        caller=call.name,
        remedy="Compile the same model with the same metrics everywhere.",
        ranks=ranks.ranks,
    )
    return shapes


def _known_state(report: _Report, name: str, state: Sequence[Any]) -> str:
    return str(report.shapes.get(name) or ([] if report.logs else state))


def _refuse(refusals: Iterable[tuple[str, str] | None], call: Call) -> None:
    for refusal in filter(None, refusals):
        raise UnsupportedError(
            call.refusal(
                *refusal,
                "Give its class a method `combine_states(self, states)` that returns the combined "
                "values of its variables: states[i] has the values of variable i, rank by rank.",
            )
        )


def _combined(
    model: keras.Model,
    states: States,
    shapes: Shapes,
    reports: Sequence[_Report],
    ranks: ProcessSet,
) -> States:
    """Return the states of all ranks in one, of all metrics that this rank has."""
    gathered = {name for report in reports for name in report.gathered}
    sums = {name: state for name, state in shapes.items() if name not in gathered}
    total = added(states, sums, ranks)
    metrics = metrics_of(model)
    for name in gathered & metrics.keys():
        of_ranks = [report.gathered[name] for report in reports if report.gathered.get(name)]
        by_variable = [np.stack(values) for values in zip(*of_ranks, strict=True)]
        total[name] = [np.asarray(value) for value in metrics[name].combine_states(by_variable)]
    return total


def _agreed(of_ranks: Sequence[Logs], call: Call) -> Logs:
    """Return the results of the combined states, which all ranks that have them must share."""
    agreed: Logs = {}
    for key in _keys(of_ranks):
        values = [logs[key] for logs in of_ranks if key in logs]
        agreed[key] = values[0]
        if not all(_equal(x, values[0]) or _are_close(x, values[0]) for x in values):
            raise UnsupportedError(
                call.refusal(
                    f"a result of metric '{key}' that depends on its variables alone",
                    f"for the same variables {', '.join(map(str, values))} on ranks",
                    "Keep what the metric counts in variables (`self.add_variable`), or report a "
                    "number that belongs to a rank by a callback.",
                )
            )
    return agreed


def _number(key: str, reports: Sequence[_Report], results: Logs) -> Any:
    """Return a number of the logs for all ranks."""
    names = set.intersection(*(set(r.same[key]) for r in reports if key in r.logs))
    names &= results.keys()
    return results[min(names)] if names else _mean([report.logs for report in reports], key)


def _mean(of_ranks: Sequence[Logs], key: str) -> Any:
    """Return the mean of a number that is no metric's, over the ranks that have it."""
    values = [logs[key] for logs in of_ranks if key in logs]
    if all(_equal(value, values[0]) for value in values):
        return values[0]  # rounding would change it
    if key not in _warned and place.rank() == 0:
        _warned.add(key)
        _log.warning(
            "'%s' is the result of no metric of the model. The logs have the mean of the ranks' "
            "numbers, that of one process only if it is a mean over equally many examples: return "
            "the result of a keras.metrics.Metric.",
            key,
        )
    mean = np.mean(np.asarray(values, np.float64), axis=0)
    return float(mean) if mean.ndim == 0 else mean


def _keys(of_ranks: Iterable[Logs]) -> list[str]:
    return list(dict.fromkeys(key for logs in of_ranks for key in logs))


def _equal(first: Any, second: Any, nan: bool = True) -> bool:
    return np.array_equal(np.asarray(first), np.asarray(second), equal_nan=nan)


def _are_close(first: Any, second: Any) -> bool:
    first, second = np.asarray(first), np.asarray(second)
    if first.shape != second.shape or {first.dtype.kind, second.dtype.kind} - set("biuf"):
        return False
    return np.allclose(first, second, 1e-5, 1e-7, equal_nan=True)


def _return_in_order(model: keras.Model, order: Sequence[str]) -> None:
    """Make `evaluate` return its list in `order`: without data a rank may have no order."""
    original = getattr(type(model), _IN_ORDER)

    def in_order(logs: Logs) -> Any:
        vars(model).pop(_IN_ORDER, None)
        if set(order) != set(logs):
            return original(model, logs)
        return [logs[key] for key in order] if len(order) != 1 else logs[order[0]]

    object.__setattr__(model, _IN_ORDER, in_order)
