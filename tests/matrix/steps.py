"""What must work beside every TensorFlow: collectives, fit, a compiled fit, modules.

Runs on every rank, with the installed wheel; it imports nothing of the checkout.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import ringar
from ringar import hooks
from ringar.collectives import compiled


def is_for_all() -> bool:
    """Whether TensorFlow's functions come before those that a library opened later has itself."""
    return hasattr(ctypes.CDLL(None), "TF_NewStatus")


WAS_FOR_ALL = is_for_all()
"""TensorFlow 2.21 does so itself."""


def check_allreduce() -> None:
    """Sums over the ranks: eagerly, in a graph, compiled, and of a NumPy array."""
    array = np.arange(7, dtype=np.float32) + ringar.rank()
    total = sum(np.arange(7, dtype=np.float32) + r for r in range(ringar.size()))

    def reduce(x: tf.Tensor) -> tf.Tensor:
        return ringar.allreduce(x, op=ringar.Sum)

    compiled = tf.function(reduce, jit_compile=True)
    for function in (reduce, reduce, tf.function(reduce), compiled):  # repeated: eager.py
        np.testing.assert_array_equal(function(tf.constant(array)), total)
    np.testing.assert_array_equal(reduce(array), total)


def check_compiled_collectives() -> None:
    """Runs the other collectives compiled; the barrier has no array, only a token."""

    @tf.function(jit_compile=True)
    def step(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        ringar.barrier()
        scattered = ringar.reducescatter(x, ringar.Sum)
        return ringar.allgather(x), ringar.broadcast(x, 1), ringar.alltoall(x), scattered

    rank, size = ringar.rank(), ringar.size()
    rows = np.arange(size) + 10 * np.arange(size)[:, None]  # one of each rank
    expected = (rows.ravel(), rows[1], rows[:, rank], rows.sum(axis=0)[rank : rank + 1])
    for _ in range(2):
        for received, value in zip(step(tf.constant(rows[rank])), expected, strict=True):
            np.testing.assert_array_equal(received, value)


def check_custom_call() -> None:
    """Looks at what XLA makes of a collective: the version of the call, and a token before arrays.

    A GPU's XLA gets the same, and hands buffers over in this order.
    """

    @tf.function(jit_compile=True)
    def call(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        results = [tf.TensorSpec([2], tf.int32), tf.TensorSpec([3], tf.float32)]
        return compiled.run("spec", [x, y], results)

    code = call.experimental_get_compiler_ir(tf.ones([3]), tf.ones([4], tf.int32))(stage="hlo")
    (line,) = (line for line in code.splitlines() if " custom-call(" in line)
    forms = {
        "typed": ("api_version=API_VERSION_TYPED_FFI", 'backend_config={text = "spec"}'),
        "older": ("api_version=API_VERSION_STATUS_RETURNING_UNIFIED", 'backend_config="spec"'),
    }
    for part in (
        "= (f32[], s32[2]{0}, f32[3]{0}) custom-call(",
        'custom_call_target="ringar_collective"',
        "operand_layout_constraints={f32[], f32[3]{0}, s32[4]{0}}",
        "custom_call_has_side_effect=true",
        *forms[compiled.form("CPU")],
    ):
        assert part in line, f"expected {part}, received {line}"


def check_fit(jit_compile: bool) -> None:
    """Trains a little; afterwards the loss has fallen and all ranks hold the same weights."""
    keras.utils.set_random_seed(7 + ringar.rank())
    features = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((features, features.sum(axis=1))).batch(8)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
    optimizer = ringar.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model.compile(optimizer=optimizer, loss="mse", jit_compile=jit_compile)
    history = model.fit(
        ringar.data.shard(dataset),
        epochs=4,
        verbose=0,
        callbacks=[ringar.callbacks.Distributed()],
    )
    losses = history.history["loss"]
    assert losses[-1] < losses[0], losses
    weights = [w.tobytes() for w in model.get_weights()]
    assert all(peer == weights for peer in ringar.allgather_object(weights)), "the weights differ"


def check_modules() -> None:
    """Trains a model in modules; the loss falls, and all ranks see the same."""
    keras.utils.set_random_seed(7)
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    layers = [keras.layers.Dense(16, name=f"dense{i}") for i in range(ringar.size())]
    plain = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(1)])
    cuts = [layer.name for layer in layers[:-1]]
    model = ringar.parallel.Pipelined(plain, schedule="delayed", cuts=cuts)
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    losses = model.fit(x, x.sum(axis=1), batch_size=8, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0], losses
    assert ringar.broadcast_object(losses) == losses


def check_hooks() -> None:
    """Finds all that ringar replaces in Keras and TensorFlow."""
    assert hooks.gaps() == {}


def main() -> None:
    """Runs the steps and prints what they ran on."""
    library = Path(ringar.__file__).with_name("libringar.so")
    assert library.is_relative_to(sys.prefix), f"expected the installed wheel, found {library}"
    ringar.init(deadline=60)
    assert ringar.size() > 1
    check_hooks()
    assert is_for_all() == WAS_FOR_ALL, "ringar has opened TensorFlow for all libraries"
    check_allreduce()
    check_compiled_collectives()
    check_custom_call()
    check_fit(jit_compile=False)
    check_fit(jit_compile=True)
    check_modules()
    if ringar.rank() == 0:
        versions = f"TensorFlow {tf.__version__}, Keras {keras.__version__}, NumPy {np.__version__}"
        print(f"{ringar.size()} ranks, {versions}: collectives, fit and modules agree")


if __name__ == "__main__":
    main()
