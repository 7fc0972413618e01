"""Weights that no gradient changes, made the same on all ranks at the end of an epoch.

Every rank changes such weights by its own batches. The meaning of their values decides how the
ranks' values become one, so that all ranks validate and save the same model.

Known statistics. A `BatchNormalization` normalizes with the statistics of its rank's batches in
training and keeps moving averages of them for later. These are combined:

    mean     = average of mean_r
    variance = average of variance_r + (mean_r - mean)^2

This is the law of total variance for ranks with equally many examples: mean and variance of all
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

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringar.collectives.allgather import allgather
from ringar.collectives.allreduce import allreduce
from ringar.collectives.digest import digest
from ringar.collectives.ops import Sum
from ringar.errors import MismatchError
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras.combine_rules import CALL, Combine, Rules, require_rules
from ringar.keras.zero.weight_slice import is_sharded
from ringar.sharding.cut import cut_of

_FURTHEST = "furthest"  # the value of the rank that has taken every step


class Combination:
    """Combine the weights of a model that no gradient changes.

    Args:
        combine: the rule for weights of unknown meaning, or rules by path.

    Raises:
        ValueError: for an unknown rule.
    """

    def __init__(self, combine: Combine | None = None) -> None:
        self._rules = Rules(combine)
        self._bases: dict[int, np.ndarray] = {}  # the values before the epoch, for sums
        self._common: dict[int, int] = {}  # the digests after the steps that all ranks have taken

    def begin_epoch(self, model: keras.Model) -> None:
        """Keep the values to which ranks add, for sums.

        Raises:
            UnsupportedError: for sums in an elastic job.
        """
        self._common = {}
        self._rules.require_no_sum_in_elastic_jobs()
        summed = (v for v in _variables(model) if self._rules.of(v) == "sum")
        self._bases = {id(v): _value(v).astype(np.float64) for v in summed}

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
        self._rules.require_paths(_variables(model))
        shared = [v for v in _variables(model) if cut_of(v) is None]
        self._combine(model, shared, process_set, furthest)
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
        differs, was_equal = self._compare(values, process_set)
        moments = _moments(model)
        rules = self._rules_of(model, variables, moments, was_equal)
        require_rules([v for v in variables if id(v) in differs and rules[id(v)] is None])
        # With other rules, mean and spread of a batch normalization are ordinary numbers.
        moments = {
            spread: pair
            for spread, pair in moments.items()
            if rules.get(spread) == rules.get(pair[0]) == "mean"
        }
        # A spread changes with its mean, and a sum grows by equal values, too.
        changes = differs | {spread for spread, (mean, _) in moments.items() if mean in differs}
        changes |= {key for key, rule in rules.items() if rule == "sum"}
        chosen = [v for v in variables if id(v) in changes and rules[id(v)] != "own"]
        if not chosen:
            return
        values = {key: value.astype(np.float64) for key, value in values.items() if key in rules}
        squares = {
            spread: values[spread] ** power + values[mean] ** 2
            for spread, (mean, power) in moments.items()
        }
        summands = [
            self._summand(v, rules[id(v)], squares.get(id(v), values[id(v)]), ranks, furthest)
            for v in chosen
        ]
        for variable, value in zip(chosen, _sums(summands, process_set), strict=True):
            values[id(variable)] = value
        for variable in chosen:
            value = values[id(variable)]
            if id(variable) in moments:
                mean, power = moments[id(variable)]
                value = np.maximum(value - values[mean] ** 2, 0.0) ** (1 / power)
            if rules[id(variable)] == "sum":
                value = self._bases[id(variable)] = value + self._bases[id(variable)]
            _assign(variable, value)

    def _rules_of(
        self,
        model: keras.Model,
        variables: list[keras.Variable],
        moments: dict[int, tuple[int, int]],
        was_equal: set[int],
    ) -> dict[int, str | None]:
        """Return the rule of each weight, by its id; None where it has none."""
        rules: dict[int, str | None] = dict.fromkeys(map(id, variables), self._rules.for_all)
        rules |= dict.fromkeys(was_equal, _FURTHEST)
        rules |= {key: "mean" for pair in moments.items() for key in (pair[0], pair[1][0])}
        rules |= dict.fromkeys(_states(model), "own")
        rules |= {id(v): rule for v in variables if (rule := self._rules.of(v)) is not None}
        # A sum needs the value before the epoch, which an evaluation alone does not have.
        return {
            id(v): None if rules[id(v)] == "sum" and id(v) not in self._bases else rules[id(v)]
            for v in variables
        }

    def _summand(
        self,
        variable: keras.Variable,
        rule: str | None,
        value: Any,
        ranks: ProcessSet,
        furthest: int,
    ) -> np.ndarray:
        """Return the part of this rank in the common value."""
        if rule == "sum":
            value = value - self._bases[id(variable)]
        elif rule == "mean":
            value = value / ranks.size()
        elif rule == "concatenate" and value.ndim > 0:
            rows = np.arange(len(value))
            part = np.array_split(rows, ranks.size())[ranks.rank()]
            is_given = np.isin(rows, part).reshape(-1, *[1] * (value.ndim - 1))
            value = np.where(is_given, value, 0.0)
        elif ranks.rank() != (furthest if rule == _FURTHEST else 0):
            value = np.zeros_like(value)
        return np.asarray(value)

    def _compare(
        self, values: dict[int, np.ndarray], process_set: ProcessSet | None
    ) -> tuple[set[int], set[int]]:
        """Return the ids of the weights that differ, and of those that were equal before."""
        now = {key: digest([value]) for key, value in values.items()}
        before = [self._common.get(key, now[key]) for key in now]
        bases = [digest([self._bases[key]]) for key in now if key in self._bases]
        rules = digest([np.frombuffer(repr(self._rules).encode(), np.uint8)])
        row = np.asarray([[*now.values(), *before, *bases, rules]], np.int64)
        everyone = np.asarray(allgather(row, name=CALL.name, process_set=process_set))
        is_equal = (everyone == everyone[0]).all(axis=0)
        if not is_equal[2 * len(now) :].all():
            raise MismatchError(
                CALL.refusal(
                    "the same `combine` on every rank, and sums that begin with the same values",
                    "others",
                    "Pass the same rules to ringar.callbacks.Distributed everywhere; resume a "
                    "training with sums at the end of an epoch.",
                )
            )
        keys = np.array(list(now))
        return set(keys[~is_equal[: len(now)]]), set(keys[is_equal[len(now) : 2 * len(now)]])


def combine(model: keras.Model, process_set: ProcessSet | None = None) -> None:
    """Make the weights that no gradient changes the same on all ranks, without rules. Collective.

    Args:
        model: the model that is trained.
        process_set: the ranks that train together; by default all.

    Raises:
        MismatchError: on every rank, if weights other than known statistics differ.
    """
    Combination().combine(model, process_set)


def _sums(summands: list[np.ndarray], process_set: ProcessSet | None) -> list[np.ndarray]:
    """Return the sums of the ranks' arrays, in one message."""
    flat = np.concatenate([array.ravel() for array in summands])
    total = np.asarray(allreduce(flat, op=Sum, name=CALL.name, process_set=process_set))
    ends = np.cumsum([array.size for array in summands])[:-1]
    parts = zip(np.split(total, ends), summands, strict=True)
    return [part.reshape(array.shape) for part, array in parts]


def _assign(variable: keras.Variable, value: np.ndarray) -> None:
    if not keras.backend.is_float_dtype(variable.dtype) and (value != np.rint(value)).any():
        raise MismatchError(
            CALL.refusal(
                f'"sum", "first" or "own" for the whole numbers of {variable.path}',
                "a mean with a fraction",
                "Change its rule in ringar.callbacks.Distributed(combine={...}).",
            )
        )
    variable.assign(keras.ops.cast(value, variable.dtype))


def _variables(model: keras.Model) -> list[keras.Variable]:
    return [v for v in model.non_trainable_weights if v.dtype != "string" and not is_sharded(v)]


def _moments(model: keras.Model) -> dict[int, tuple[int, int]]:
    """Return the moments of batch normalizations.

    Returns:
        For the id of each variance or standard deviation: the id of its mean, and the power that
        makes it a variance.
    """

    def of(layer: Any) -> Iterator[tuple[Any, Any, int]]:
        yield layer.moving_variance, layer.moving_mean, 1
        if getattr(layer, "renorm", False):
            yield layer.moving_stddev, layer.moving_mean, 2
            yield layer.renorm_stddev, layer.renorm_mean, 2

    return {
        id(spread): (id(mean), power)
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization) and layer.built
        for spread, mean, power in of(layer)
    }


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
