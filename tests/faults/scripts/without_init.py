"""Use everything before init, and again after shutdown."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import keras
import numpy as np
import tensorflow as tf

import ringar
from ringar.parallel import scheduled
from tests.faults.job import attempt, works
from tests.faults.scripts.modes import MODES, Make, Scenario, ones

ASKING: dict[str, Callable[[], object]] = {
    name: getattr(ringar, name)
    for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
}
SETS: dict[str, Callable[[], object]] = {
    "add_process_set": lambda: ringar.add_process_set([0]),
    "remove_process_set": lambda: ringar.remove_process_set(ringar.ProcessSet([0])),
    "ProcessSet.rank": lambda: ringar.ProcessSet([0]).rank(),
    "ProcessSet.included": lambda: ringar.ProcessSet([0]).included(),
}
COLLECTIVES: dict[str, Scenario] = {
    "allreduce": lambda make: ringar.allreduce(make(ones(4))),
    "grouped_allreduce": lambda make: ringar.grouped_allreduce([make(ones(4))]),
    "allgather": lambda make: ringar.allgather(make(ones(4))),
    "grouped_allgather": lambda make: ringar.grouped_allgather([make(ones(4))]),
    "reducescatter": lambda make: ringar.reducescatter(make(ones(4))),
    "grouped_reducescatter": lambda make: ringar.grouped_reducescatter([make(ones(4))]),
    "broadcast": lambda make: ringar.broadcast(make(ones(4)), 0),
    "grouped_broadcast": lambda make: ringar.grouped_broadcast([make(ones(4))], 0),
    "alltoall": lambda make: ringar.alltoall(make(ones(4))),
    "barrier": lambda make: ringar.barrier(),
    "send": lambda make: ringar.send(make(ones(4)), 1),
    "recv": lambda make: ringar.recv(tf.TensorSpec([4]), 1),
}
ON_GPUS: dict[str, Callable[[], object]] = {
    "cupy.allreduce": lambda: ringar.cupy.allreduce(None),
    "cupy.grouped_allreduce": lambda: ringar.cupy.grouped_allreduce([None]),
    "cupy.allgather": lambda: ringar.cupy.allgather(None),
    "cupy.grouped_allgather": lambda: ringar.cupy.grouped_allgather([None]),
    "cupy.reducescatter": lambda: ringar.cupy.reducescatter(None),
    "cupy.grouped_reducescatter": lambda: ringar.cupy.grouped_reducescatter([None]),
    "cupy.broadcast": lambda: ringar.cupy.broadcast(None, 0),
    "cupy.grouped_broadcast": lambda: ringar.cupy.grouped_broadcast([None], 0),
    "cupy.alltoall": lambda: ringar.cupy.alltoall(None),
    "cupy.synchronize": ringar.cupy.synchronize,
}
OBJECTS: dict[str, Callable[[], object]] = {
    "broadcast_object": lambda: ringar.broadcast_object("x"),
    "allgather_object": lambda: ringar.allgather_object("x"),
    "broadcast_variables": lambda: ringar.broadcast_variables([tf.Variable(ones(4))]),
    "LocalSGD": lambda: ringar.LocalSGD("sgd"),
    "DiLoCo": lambda: ringar.DiLoCo("sgd"),
    "EASGD": lambda: ringar.EASGD("sgd"),
    "Codistillation": lambda: ringar.Codistillation(keras.Sequential()),
    "Hogwild": lambda: ringar.Hogwild("sgd"),
    "ParameterServer": lambda: ringar.ParameterServer([], keras.optimizers.SGD()),
    "Window": lambda: ringar.Window(4),
    "Lasso": lambda: scheduled.Lasso().fit(ones(4, 2), ones(4)),
    "MatrixFactorization": lambda: scheduled.MatrixFactorization().fit(
        np.arange(4), np.arange(4), ones(4), (4, 4)
    ),
}


def start_timeline() -> None:
    ringar.start_timeline("/dev/null")


def shard() -> None:
    ringar.data.shard(ones(4))


def sharded_weights() -> None:
    with ringar.sharded_weights():
        pass


def slices() -> None:
    ringar.allreduce(tf.IndexedSlices(tf.ones([1, 4]), tf.constant([0]), tf.constant([9, 4])))


def train() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD()), "mse")
    model.fit(ones(8, 2), ones(8, 1), batch_size=4, verbose=0)


def differentiate() -> None:
    x = tf.Variable(2.0)
    with ringar.DistributedGradientTape(tf.GradientTape()) as tape:
        y = x * x
    tape.gradient(y, [x])


def attempt_everything(when: str) -> None:
    for name, function in {**ASKING, **SETS, **OBJECTS, **ON_GPUS}.items():
        attempt(f"{when}: {name}", function)
    for name, scenario in COLLECTIVES.items():
        for mode, run in MODES.items():
            attempt(f"{when}: {name}, {mode}", partial(run, scenario))
    for function in (start_timeline, shard, sharded_weights, slices, train, differentiate):
        attempt(f"{when}: {function.__name__}", function)


def traced(make: Make) -> tf.Tensor:
    return ringar.allreduce(make(ones(4)), ringar.Sum, name="t")


def attempt_what_was_traced() -> None:
    """Functions that were traced while ringar ran: the library finds that it no longer does."""
    function = tf.function(lambda: traced(tf.constant), autograph=False)
    compiled = tf.function(lambda: traced(tf.constant), autograph=False, jit_compile=True)
    np.testing.assert_array_equal(function(), compiled())
    ringar.shutdown()
    attempt("traced: function", function)
    attempt("traced: compiled", compiled)
    ringar.init()
    attempt("traced: function, initialized again", function)
    attempt("traced: compiled, initialized again", compiled)
    attempt("works after that", works)


attempt("shutdown", ringar.shutdown)
attempt_everything("before init")
ringar.init()
attempt("works", works)
attempt("init twice", ringar.init)
attempt_what_was_traced()
ringar.shutdown()
attempt_everything("after shutdown")
