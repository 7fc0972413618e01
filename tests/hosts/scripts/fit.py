"""Trains a model on all ranks and, with the whole batch, on one: the weights are the same."""

from __future__ import annotations

import keras
import numpy as np

import ringar
from tests.faults.job import attempt
from tests.keras import common


def train(distributed: bool, seed: int) -> keras.Model:
    model = common.dense_model(seed=seed)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    if distributed:
        model.compile(ringar.DistributedOptimizer(optimizer), "mse")
        data, callbacks = common.own_batches(common.regression()), [ringar.callbacks.Distributed()]
        model.fit(data, verbose=0, callbacks=callbacks)
    else:
        model.compile(optimizer, "mse")
        model.fit(common.batches(common.regression()), verbose=0)
    return model


def training_equals_one_process() -> None:
    start = common.values(common.dense_model(seed=0))
    expected = common.values(train(distributed=False, seed=0))
    model = train(distributed=True, seed=ringar.rank())
    assert len(set(ringar.allgather_object(common.digest(model)))) == 1, "other weights elsewhere"
    assert common.largest_difference(start, expected) > 1e-3, "a wrong step would not be seen"
    assert common.largest_difference(common.values(model), expected) < 1e-5
    assert all(np.isfinite(value).all() for value in common.values(model))


ringar.init(deadline=30)
attempt("training equals one process", training_equals_one_process)
ringar.shutdown()
