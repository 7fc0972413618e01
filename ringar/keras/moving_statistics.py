"""Weights that no gradient changes, made the same on all ranks at the end of an epoch.

Every rank changes such weights by its own batches. What their values mean decides how those of the
ranks become one, so that all ranks validate and save the same model.

Known statistics. A `BatchNormalization` normalizes with the statistics of its rank's batches in
training and keeps moving averages of them for later. These are combined:

    mean     = average of mean_r
    variance = average of variance_r + (mean_r - mean)^2

This is the law of total variance for ranks with as many examples each: mean and variance of all
examples, if `mean_r` and `variance_r` are those of rank r's. A plain mean of the variances would
leave out how the ranks' means differ, which matters where shares have different distributions.
The states of a stateful recurrent layer belong to a rank's own rows and stay its own.

Functions of weights and steps. A momentum encoder, a spectral norm's vector or a counter of steps
is the same on ranks that have taken the same steps. Ranks with fewer batches receive the value of
the rank that has taken every step. Ranks know such a weight by its values after the last step that
all of them have taken: they are equal.

All other weights follow the rule that the user gives (`Combine`). A weight without a rule that
differs is an error: the mean of unit vectors is no unit vector, the mean of counters counts
nothing.

Seeds are no weights and stay each rank's own.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringar.collectives.allgather import allgather
from ringar.collectives.allreduce import allreduce
from ringar.collectives.call import Call
from ringar.collectives.digest import digest
from ringar.collectives.ops import Sum
from ringar.errors import MismatchError
from ringar.job.process_sets import ProcessSet, or_all
from ringar.sharding.cut import cut_of
from ringar.sharding.sharded_variable import is_sharded

#: The rules for weights that differ, as in `ringar.callbacks.Distributed(combine=)`.
RULES = ("mean", "sum", "first", "concatenate", "own")
#: One rule for all weights, or rules by path, or the end of it, with wildcards.
Combine = str | Mapping[str, str]

_CALL = Call("allgather", name="weights without gradients")
_FURTHEST = "furthest"  # the value of the rank that has taken every step


class Combination:
    """Combine the weights of a model that no gradient changes.

    Args:
        combine: the rule for weights of unknown meaning, or rules by path.

    Raises:
        ValueError: for an unknown rule.
    """

    def __init__(self, combine: Combine | None = None) -> None:
        self.rules = dict(combine) if isinstance(combine, Mapping) else {}
        self.default = None if isinstance(combine, Mapping) else combine
        for rule in [*self.rules.values(), *filter(None, [self.default])]:
            if rule not in RULES:
                raise ValueError(
                    f"`combine` must be one of {', '.join(map(repr, RULES))}, or a dict of these "
                    f"by the path of a weight. Received: combine={combine!r}"
                )
        self._begun: dict[int, np.ndarray] = {}  # the values before the epoch, for sums
        self._common: dict[int, int] = {}  # the digests after the steps that all ranks have taken

    def begin_epoch(self, model: keras.Model) -> None:
        """Keep the values to which ranks add up."""
        self._common = {}
        summed = (v for v in _variables(model) if self._rule(v) == "sum")
        self._begun = {id(v): _value(v).astype(np.float64) for v in summed}

    def look(self, model: keras.Model) -> None:
        """Digest the weights after the last step that all ranks take; later calls do nothing."""
        if not self._common:
            self._common = {id(v): digest([_value(v)]) for v in _variables(model)}

    def combine(
        self, model: keras.Model, process_set: ProcessSet | None = None, furthest: int = 0
    ) -> None:
        """Make the weights the same on all ranks. Collective.

        Two messages: digests, and the sum of what each rank contributes, in float64.

        Args:
            model: the model that is trained.
            process_set: the ranks that train together; by default all.
            furthest: the place in `process_set` of a rank that has taken every step.

        Raises:
            MismatchError: on every rank, if weights differ for which there is no rule.
            ValueError: if a path in the rules is that of no weight.
        """
        self._require_paths(model)
        whole = [v for v in _variables(model) if cut_of(v) is None]
        self._combine(model, whole, process_set, furthest)
        parts = [v for v in _variables(model) if cut_of(v) is not None]
        if parts:
            grid = cut_of(parts[0]).grid  # type: ignore[union-attr]
            self._combine(model, parts, grid.data_set, furthest // grid.model)

    def _combine(
        self,
        model: keras.Model,
        variables: list[keras.Variable],
        process_set: ProcessSet | None,
        furthest: int,
    ) -> None:
        ranks = or_all(process_set)
        if not variables or ranks.size() == 1:
            return
        values = {id(v): _value(v) for v in variables}
        differs, was_equal = self._compare(variables, values, process_set)
        means, own = _moments(model), _states(model)

        def rule(variable: keras.Variable) -> str | None:
            known = "own" if id(variable) in own else "mean" if id(variable) in means else None
            steps = _FURTHEST if id(variable) in was_equal else None
            return self._rule(variable) or known or steps or self.default

        rules = {id(v): rule(v) for v in variables}
        self._require_rules([v for v in variables if id(v) in differs and rules[id(v)] is None])
        # A mean square needs its mean, and a sum grows by equal values, too.
        chosen = [
            v
            for v in variables
            if rules[id(v)] != "own"
            and ({id(v), means.get(id(v), (0, 0))[0]} & differs or id(v) in self._begun)
        ]
        if not chosen:
            return
        needed = {id(v) for v in chosen} | {means[id(v)][0] for v in chosen if id(v) in means}
        values = {key: values[key].astype(np.float64) for key in needed}

        def square_of_mean(key: int) -> Any:
            is_moment = rules[key] == "mean" and means.get(key, (key, 0))[0] != key
            return values[means[key][0]] ** 2 if is_moment else 0.0

        contributions = [
            _contribution(
                rules[id(v)],
                values[id(v)] ** means.get(id(v), (0, 1))[1] + square_of_mean(id(v)),
                self._begun.get(id(v)),
                ranks,
                place=furthest if rules[id(v)] == _FURTHEST else 0,
            )
            for v in chosen
        ]
        flat = np.concatenate([c.ravel() for c in contributions])
        total = np.asarray(allreduce(flat, op=Sum, name=_CALL.name, process_set=process_set))
        ends = np.cumsum([c.size for c in contributions])
        for variable, value in zip(chosen, np.split(total, ends[:-1]), strict=True):
            values[id(variable)] = value.reshape(variable.shape)
        for variable in chosen:
            self._assign(variable, values[id(variable)], square_of_mean(id(variable)), means)

    def _assign(
        self, variable: keras.Variable, value: np.ndarray, square: Any, means: dict[int, Any]
    ) -> None:
        if id(variable) in self._begun:
            value = self._begun[id(variable)] = value + self._begun[id(variable)]
        if not np.isscalar(square):
            value = np.maximum(value - square, 0.0) ** (1 / means[id(variable)][1])
        if not keras.backend.is_float_dtype(variable.dtype) and (value != np.rint(value)).any():
            raise MismatchError(
                _CALL.refusal(
                    f'"sum", "first" or "own" for the whole numbers of {variable.path}',
                    "a mean with a fraction",
                    "Change its rule in ringar.callbacks.Distributed(combine={...}).",
                )
            )
        variable.assign(keras.ops.cast(value, variable.dtype))

    def _compare(
        self,
        variables: list[keras.Variable],
        values: dict[int, np.ndarray],
        process_set: ProcessSet | None,
    ) -> tuple[set[int], set[int]]:
        """Return the ids of the weights that differ, and of those that were equal before."""
        now = {key: digest([value]) for key, value in values.items()}
        before = [self._common.get(key, now[key]) for key in now]
        begun = [digest([self._begun[key]]) for key in now if key in self._begun]
        text = repr((self.default, sorted(self.rules.items())))
        rules = digest([np.frombuffer(text.encode(), np.uint8)])
        row = np.asarray([[*now.values(), *before, *begun, rules]], np.int64)
        everyone = np.asarray(allgather(row, name=_CALL.name, process_set=process_set))
        same = (everyone == everyone[0]).all(axis=0)
        if not same[2 * len(now) :].all():
            raise MismatchError(
                _CALL.refusal(
                    "the same `combine` on every rank, and sums that begin with the same values",
                    "others",
                    "Pass the same rules to ringar.callbacks.Distributed everywhere; resume a "
                    "training with sums at the end of an epoch.",
                )
            )
        keys = np.array(list(now))
        return set(keys[~same[: len(now)]]), set(keys[same[len(now) : 2 * len(now)]])

    def _rule(self, variable: keras.Variable) -> str | None:
        matching = (rule for path, rule in self.rules.items() if _is_at(variable, path))
        return next(matching, None)

    def _require_paths(self, model: keras.Model) -> None:
        variables = _variables(model)
        for path in self.rules:
            if not any(_is_at(variable, path) for variable in variables):
                raise ValueError(
                    f"`combine` must have paths of weights that no gradient changes: "
                    f"{', '.join(v.path for v in variables) or 'none'}. Received: {path!r}"
                )

    def _require_rules(self, variables: list[keras.Variable]) -> None:
        if variables:
            paths = [v.path for v in variables]
            more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
            raise MismatchError(
                _CALL.refusal(
                    "weights that no gradient changes to be the same on every rank, or a rule for "
                    "them",
                    f"other values of {', '.join(paths[:5])}{more}",
                    "Say how the ranks' values become one: ringar.callbacks.Distributed(combine="
                    f'{{"{paths[0]}": "mean"}}), or "sum" (of what the ranks have added in an '
                    'epoch), "first" (of the first rank), "concatenate" (each rank gives a part of '
                    'the rows), "own" (each rank keeps its own). combine="mean" is a rule for all.',
                )
            )


def combine(model: keras.Model, process_set: ProcessSet | None = None) -> None:
    """Make the weights that no gradient changes the same on all ranks, without rules. Collective.

    Args:
        model: the model that is trained.
        process_set: the ranks that train together; by default all.

    Raises:
        MismatchError: on every rank, if weights differ that are no known statistics.
    """
    Combination().combine(model, process_set)


def _contribution(
    rule: str | None, value: np.ndarray, begun: np.ndarray | None, ranks: ProcessSet, place: int
) -> np.ndarray:
    """Return this rank's summand of the common value."""
    if begun is not None:
        return value - begun
    if rule == "mean":
        return value / ranks.size()
    if rule == "concatenate" and value.ndim > 0:
        part = np.array_split(np.arange(len(value)), ranks.size())[ranks.rank()]
        is_given = np.isin(np.arange(len(value)), part).reshape(-1, *[1] * (value.ndim - 1))
        return np.where(is_given, value, 0.0)
    return value if ranks.rank() == place else np.zeros_like(value)


def _is_at(variable: keras.Variable, path: str) -> bool:
    """Return whether `path`, which may have wildcards, is the variable's or the end of it."""
    return fnmatch.fnmatchcase(f"/{variable.path}", f"*/{path}")


def _variables(model: keras.Model) -> list[keras.Variable]:
    return [v for v in model.non_trainable_weights if v.dtype != "string" and not is_sharded(v)]


def _moments(model: keras.Model) -> dict[int, tuple[int, int]]:
    """Return the statistics of batch normalizations.

    Returns:
        For the id of each variable: the id of its mean, which is its own for a mean, and the power
        of it that is a variance.
    """

    def of(layer: Any) -> Iterator[tuple[str, str, int]]:
        yield "moving_mean", "moving_variance", 1
        if getattr(layer, "renorm", False):
            yield "moving_mean", "moving_stddev", 2
            yield "renorm_mean", "renorm_stddev", 2

    moments: dict[int, tuple[int, int]] = {}
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and layer.built:
            for mean, spread, power in of(layer):
                key = id(getattr(layer, mean))
                moments[key] = (key, 1)
                moments[id(getattr(layer, spread))] = (key, power)
    return moments


def _states(model: keras.Model) -> set[int]:
    """Return the ids of the states of stateful recurrent layers."""
    return {
        id(state)
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.RNN) or hasattr(layer, "carried_states")
        for state in tf.nest.flatten(getattr(layer, "carried_states", None) or layer.states)
    }


def _value(variable: keras.Variable) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(variable))
