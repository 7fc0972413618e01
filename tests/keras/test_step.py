"""What ringar adds to a training step: nothing on one rank, and never a wait for the device."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

import ringar
from tests.keras import common

pytestmark = pytest.mark.usefixtures("initialized")

#: The callbacks, and the methods that Keras calls per batch and that they have a use for: to
#: broadcast a model that its first batch has built, and to set a learning rate that changes by
#: batches. None of a batch's end, for which Keras would fetch the metrics of every step.
PER_BATCH: list[tuple[Callable[[], Any], set[str]]] = [
    (ringar.callbacks.Distributed, {"on_train_batch_begin"}),
    (ringar.callbacks.BroadcastGlobalVariablesCallback, {"on_train_batch_begin"}),
    (ringar.callbacks.MetricAverageCallback, set()),
    (
        lambda: ringar.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 1 / (1 + epoch)),
        {"on_train_batch_begin"},
    ),
    (
        lambda: ringar.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=3),
        {"on_train_batch_begin"},
    ),
]


@pytest.mark.parametrize(("make", "expected"), PER_BATCH)
def test_no_hook_of_a_batch_is_overridden_without_need(
    make: Callable[[], Any], expected: set[str]
) -> None:
    base = keras.callbacks.Callback
    hooks = {name for name in dir(base) if name.startswith("on_") and "batch" in name}
    assert {"on_train_batch_end", "on_batch_end", "on_test_batch_end"} <= hooks
    kind = type(make())
    assert {name for name in hooks if getattr(kind, name) is not getattr(base, name)} == expected


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts how often this thread, which drives the training, waits for the value of a tensor.

    Keras fetches metrics in a thread of its own, unless a callback wants them after each batch.
    """
    count: Counter[str] = Counter()
    original = tf_ops._EagerTensorBase._numpy

    def counting(self: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            count["fetched"] += 1
        return original(self)

    monkeypatch.setattr(tf_ops._EagerTensorBase, "_numpy", counting)
    return count


def fetched_by_steps(fetched: Counter[str], callbacks: list[Any]) -> int:
    """How many more values 3 epochs of 25 steps take than 3 epochs of 5 steps."""
    model = common.dense_model(seed=0)
    model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "mse")
    counts = []
    for steps in (5, 5, 25):  # the first one traces
        data = tf.data.Dataset.from_tensors(common.regression(4)).repeat(steps)
        fetched.clear()
        model.fit(data, epochs=3, verbose=0, callbacks=callbacks)
        counts.append(fetched["fetched"])
    return counts[2] - counts[1]


@pytest.mark.ranks(1, 2)
def test_callbacks_wait_for_no_step(fetched: Counter[str]) -> None:
    """Keras itself asks once per step whether there is another batch."""
    by_keras = fetched_by_steps(fetched, [])
    assert by_keras <= 3 * 20
    # The warm-up changes the learning rate with every batch; without asking what it was.
    assert fetched_by_steps(fetched, [make() for make, _ in PER_BATCH]) == by_keras


@pytest.mark.ranks(1, 2)
def test_a_callback_that_waits_is_seen(fetched: Counter[str]) -> None:
    """That the test before this one can fail."""

    class Waits(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            common.number(self.model.optimizer.learning_rate)

    assert fetched_by_steps(fetched, [Waits()]) >= 3 * 20 + fetched_by_steps(fetched, [])


def operations(model: keras.Model, data: tuple[Any, Any]) -> Counter[str]:
    """The operations of a training step, those of the functions that it calls included."""
    step = tf.function(lambda: model.train_step(tuple(tf.constant(part) for part in data)))
    definition = step.get_concrete_function().graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return Counter(node.op for node in nodes)


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_one_rank_pays_nothing(precision: str, sparse: bool, size: int) -> None:
    """A step is traced to the same operations as without ringar, and others only on more ranks."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        make = common.embedding_model if sparse else common.dense_model
        data = common.tokens(4) if sparse else common.regression(4)
        counts = []
        for wrap in (lambda optimizer: optimizer, ringar.DistributedOptimizer):
            model = make()
            model.compile(wrap(keras.optimizers.Adam(0.1)), "mse")
            model.optimizer.build(model.trainable_variables)
            counts.append(operations(model, data))
    finally:
        keras.config.set_dtype_policy(before)
    plain, distributed = counts
    assert not any("Ringar" in operation for operation in plain)
    assert any("Ringar" in operation for operation in distributed) == (size > 1)
    if size == 1 and not sparse:  # equal rows of a sparse gradient are added, on one rank, too
        assert distributed == plain


def test_one_rank_pays_nothing_in_a_compiled_step(size: int) -> None:
    model = common.dense_model()
    model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    data = common.regression(4)
    step = tf.function(
        lambda: model.train_step(tuple(tf.constant(part) for part in data)), jit_compile=True
    )
    step()
    assert ("ringar" in step.experimental_get_compiler_ir()(stage="hlo")) == (size > 1)
