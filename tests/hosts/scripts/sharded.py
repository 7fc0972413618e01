"""Trains with slices among all ranks, and among those of each host: the weights are the same."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ringar
from tests.faults.job import attempt
from tests.keras import common

WAYS: dict[str, dict[str, Any]] = {
    "none": {},
    "among all ranks": {"shard": "optimizer"},
    "within hosts": {"shard": "gradients", "shard_ranks": "host"},
}


def equals_unsharded() -> None:
    shapes = [(7, 5), (3,), ()]
    rng = np.random.default_rng(3)
    start = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    models = {way: [keras.Variable(array) for array in start] for way in WAYS}
    optimizers = {}
    for way, options in WAYS.items():
        adam = keras.optimizers.Adam(0.01, global_clipnorm=1.0)
        optimizers[way] = ringar.DistributedOptimizer(adam, **options)
        optimizers[way].build(models[way])
    assert [v.shape for v in optimizers["among all ranks"]._momentums] == [(9,), (1,), (1,)]
    assert [v.shape for v in optimizers["within hosts"]._momentums] == [(18,), (2,), (1,)]

    @tf.function(autograph=False)
    def step(number: tf.Tensor) -> None:
        for way, copies in models.items():
            gradients = [tf.sin(v.value * float(ringar.rank() + 1) + number) for v in copies]
            optimizers[way].apply(gradients, copies)

    for number in range(10):
        step(tf.constant(float(number)))
    values = {way: [v.numpy() for v in copies] for way, copies in models.items()}
    assert common.largest_difference(values["none"], start) > 1e-3
    for way in WAYS:
        assert common.largest_difference(values[way], values["none"]) < 1e-6, way
    of_ranks = ringar.allgather_object([v.tobytes() for copies in values.values() for v in copies])
    assert all(weights == of_ranks[0] for weights in of_ranks), "other weights elsewhere"


def sends_what_the_formula_says() -> None:
    elements, hosts, local = 4096, ringar.size() // ringar.local_size(), ringar.local_size()
    variable = keras.Variable(np.zeros(elements, np.float32))
    sgd = keras.optimizers.SGD(0.1)
    optimizer = ringar.DistributedOptimizer(sgd, shard="optimizer", shard_ranks="host")
    optimizer.apply([tf.ones(elements)], [variable])
    ringar.reset_stats()
    optimizer.apply([tf.ones(elements)], [variable])
    np.testing.assert_allclose(variable, -0.2, rtol=1e-6)
    counts = {name: traffic.bytes for name, traffic in ringar.stats().items()}
    between = sum(count for name, count in counts.items() if name.endswith("/replicas"))
    within = sum(count for name, count in counts.items() if "/slices_" in name) - between
    assert between == 2 * (hosts - 1) * (4 * elements // local) // hosts, counts
    assert within == 2 * (local - 1) * 4 * elements // local, counts


def for_two_sets() -> None:
    """Each pair of ranks of equal number trains a model of its own; they are on two hosts."""
    sets = [ringar.add_process_set([0, 2]), ringar.add_process_set([1, 3])]
    pair = next(pair for pair in sets if pair.included())
    variable = keras.Variable(np.zeros(3, np.float32))
    sgd = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer = ringar.DistributedOptimizer(
        sgd, shard="optimizer", shard_ranks="host", process_set=pair
    )
    optimizer.apply([tf.fill([3], float(ringar.rank()))], [variable])
    np.testing.assert_allclose(variable, -0.1 * (1.0 + ringar.rank() % 2), rtol=1e-6)


def refused() -> None:
    sets = [ringar.add_process_set([0, 1, 2]), ringar.add_process_set([3])]
    group = next(group for group in sets if group.included())
    ringar.DistributedOptimizer("adam", shard="optimizer", shard_ranks="host", process_set=group)


ringar.init(deadline=30)
attempt("slices", equals_unsharded)
attempt("bytes", sends_what_the_formula_says)
attempt("two process sets", for_two_sets)
attempt("uneven hosts", refused)
ringar.shutdown()
