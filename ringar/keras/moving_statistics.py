"""Moving statistics, which every rank gathers from its own batches, made the same on all ranks.

A `BatchNormalization` normalizes with the statistics of its rank's batches in training and keeps
moving averages of them for later. These differ between the ranks, and so would validation, and the
file that a rank saves. At the end of an epoch they are combined:

    mean     = average of mean_r
    variance = average of variance_r + (mean_r - mean)^2

This is the law of total variance for ranks with as many examples each: mean and variance of all
examples, if `mean_r` and `variance_r` are those of rank r's. A plain mean of the variances would
leave out how the ranks' means differ, which matters where shares have different distributions.

Other weights that no gradient changes and that are numbers with a fraction are averaged. Those that
are equal on all ranks stay as they are, bit by bit: frozen layers, `SyncBatchNormalization`. Whole
numbers (seeds, counters) stay each rank's own. Training does not depend on moving statistics, so
its results are the same with and without this.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from ringar.collectives.allgather import allgather
from ringar.collectives.allreduce import allreduce
from ringar.collectives.digest import digest
from ringar.job.process_sets import ProcessSet, or_all
from ringar.sharding.cut import cut_of
from ringar.sharding.sharded_variable import is_sharded


def combine(model: keras.Model, process_set: ProcessSet | None = None) -> None:
    """Make the moving statistics of `model` the same on all ranks. Collective.

    Two messages: digests, and the sum of what differs, in float64.

    Args:
        model: the model that is trained.
        process_set: the ranks that train together; by default all.
    """
    variables = [
        v
        for v in model.non_trainable_weights
        if keras.backend.is_float_dtype(v.dtype) and not is_sharded(v)
    ]
    whole = [v for v in variables if cut_of(v) is None]
    _combine(model, whole, process_set)
    parts = [v for v in variables if cut_of(v) is not None]
    if parts:
        _combine(model, parts, cut_of(parts[0]).grid.data_set)  # type: ignore[union-attr]


def _combine(
    model: keras.Model, variables: list[keras.Variable], process_set: ProcessSet | None
) -> None:
    if not variables or or_all(process_set).size() == 1:
        return
    values = {id(v): _value(v) for v in variables}
    digests = np.asarray([[digest([value]) for value in values.values()]], np.int64)
    everyone = np.asarray(allgather(digests, name="moving statistics", process_set=process_set))
    differs = set(np.array(list(values))[(everyone != everyone[0]).any(axis=0)])
    mean_of = {variance: mean for mean, variance in _moments(model) if {mean, variance} & differs}
    chosen = [v for v in variables if id(v) in differs | {*mean_of, *mean_of.values()}]
    if not chosen:
        return

    def square_of_mean(key: int) -> Any:
        return values[mean_of[key]] ** 2 if key in mean_of else 0.0

    # With the square of its mean a variance is a mean square, which ranks can average.
    own = np.concatenate([(values[id(v)] + square_of_mean(id(v))).ravel() for v in chosen])
    means = np.asarray(allreduce(own, name="moving statistics/mean", process_set=process_set))
    ends = np.cumsum([values[id(v)].size for v in chosen])
    for variable, mean in zip(chosen, np.split(means, ends[:-1]), strict=True):
        values[id(variable)] = mean.reshape(variable.shape)
    for variable in chosen:
        value = values[id(variable)] - square_of_mean(id(variable))
        if id(variable) in mean_of:
            value = np.maximum(value, 0.0)
        variable.assign(keras.ops.cast(value, variable.dtype))


def _moments(model: keras.Model) -> list[tuple[int, int]]:
    """Return the ids of the moving mean and the moving variance of each batch normalization."""
    return [
        (id(layer.moving_mean), id(layer.moving_variance))
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization) and layer.built
    ]


def _value(variable: keras.Variable) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(variable)).astype(np.float64)
