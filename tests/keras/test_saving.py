"""What rank 0 saves loads in a plain process, and in a job again, with the optimizer's state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import ringar
from tests.keras import common
from tests.plugin import run_job

pytestmark = pytest.mark.usefixtures("initialized")

# A process that knows nothing of ringar: it loads, says what it got, and takes one step.
PLAIN_PROCESS = """
import sys
sys.modules["ringar"] = None
import keras, numpy as np
file, data, result = sys.argv[1:]
model = keras.models.load_model(file)
arrays = np.load(data)
state = [keras.ops.convert_to_numpy(v) for v in model.optimizer.variables]
model.fit(arrays["x"], arrays["y"], batch_size=len(arrays["x"]), verbose=0)
np.savez(result, kind=type(model.optimizer).__module__ + "." + type(model.optimizer).__name__,
         **{f"state_{i}": s for i, s in enumerate(state)},
         **{f"weight_{i}": keras.ops.convert_to_numpy(w) for i, w in enumerate(model.weights)})
"""


@pytest.mark.ranks(2)
def test_saved_model_resumes_in_a_plain_process(
    rank: int, shared_tmp_path: Path, exchange: Callable[[Any], Any]
) -> None:
    model = common.dense_model(seed=rank)
    optimizer = ringar.DistributedOptimizer(keras.optimizers.Adam(0.01, clipnorm=1.0))
    model.compile(optimizer, "mean_squared_error")
    data = common.own_batches(common.regression(5 * common.GLOBAL_BATCH))
    model.fit(data, verbose=0, callbacks=[ringar.callbacks.Distributed()])
    file = shared_tmp_path / "model.keras"
    state = [np.array(keras.ops.convert_to_numpy(v)) for v in model.optimizer.variables]

    result = None
    if rank == 0:
        model.save(file)
        result = resume_in_plain_process(file)
        assert str(result["kind"]).endswith("adam.Adam")
        for i, expected in enumerate(state):
            np.testing.assert_array_equal(result[f"state_{i}"], expected)
    exchange("saved")

    # Wrapped again, on all ranks, it goes on as the plain process did: with the whole batch.
    loaded = keras.models.load_model(file)
    again = ringar.DistributedOptimizer(loaded.optimizer)
    assert common.number(again.iterations) == 5
    loaded.compile(again, "mean_squared_error")
    batch = common.regression(common.GLOBAL_BATCH, seed=11)
    loaded.fit(common.own_batches(batch), verbose=0, callbacks=[ringar.callbacks.Distributed()])
    assert common.number(again.iterations) == 6
    if result is not None:
        for i, weight in enumerate(common.values(loaded)):
            np.testing.assert_allclose(weight, result[f"weight_{i}"], atol=1e-6, rtol=0)


def resume_in_plain_process(file: Path) -> Any:
    data, result = file.with_name("data.npz"), file.with_name("result.npz")
    x, y = common.regression(common.GLOBAL_BATCH, seed=11)
    np.savez(data, x=x, y=y)
    run_job(None, PLAIN_PROCESS, args=[str(file), str(data), str(result)]).check()
    return np.load(result)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_load_model_goes_on_as_if_it_had_not_been_saved(
    policy: str, rank: int, shared_tmp_path: Path, exchange: Callable[[Any], Any]
) -> None:
    keras.config.set_dtype_policy(policy)
    try:
        file = shared_tmp_path / "model.keras"
        model = common.dense_model(seed=rank)
        optimizer = ringar.DistributedOptimizer(keras.optimizers.Adam(0.01), op=ringar.Sum)
        model.compile(optimizer, "mean_squared_error", metrics=["mae"], jit_compile=False)
        data = common.own_batches(common.regression(2 * common.GLOBAL_BATCH))
        callbacks = [ringar.callbacks.Distributed()]
        model.fit(data, verbose=0, callbacks=callbacks)
        if rank == 0:
            model.save(file)
        # Other ranks need not see the file: they name one that is not there.
        loaded = ringar.load_model(file if rank == 0 else "elsewhere.keras", op=ringar.Sum)
        for copy in (model, loaded):
            copy.fit(data, epochs=2, verbose=0, callbacks=callbacks)
    finally:
        keras.config.set_dtype_policy("float32")
    assert common.digest(loaded) == common.digest(model)
    assert len(set(exchange(common.digest(loaded)))) == 1
    assert getattr(ringar.load_model(file, compile=False), "optimizer", None) is None


def test_load_model_that_is_not_there(rank: int, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No such file.*gone.keras") as error:
        ringar.load_model(tmp_path / "gone.keras")
    message = f"rank {rank} | ringar.load_model: expected rank 0 to read"
    assert rank == 0 or message in str(error.value)


def test_serialized_as_the_base_class() -> None:
    plain = keras.saving.serialize_keras_object(keras.optimizers.AdamW(0.25, name="mine"))
    optimizer = ringar.DistributedOptimizer(keras.optimizers.AdamW(0.25, name="mine"))
    assert keras.saving.serialize_keras_object(optimizer) == plain


def test_loss_scale_is_saved_as_keras_would(tmp_path: Path) -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = common.dense_model()
        optimizer = ringar.DistributedOptimizer(keras.optimizers.SGD(0.1))
        model.compile(optimizer, "mean_squared_error", jit_compile=False)
        model.fit(*common.regression(24), batch_size=24, verbose=0)
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
    finally:
        keras.config.set_dtype_policy("float32")
    assert type(loaded.optimizer) is keras.optimizers.LossScaleOptimizer
    assert type(loaded.optimizer.inner_optimizer) is keras.optimizers.SGD
    assert common.number(loaded.optimizer.inner_optimizer.iterations) == 1
