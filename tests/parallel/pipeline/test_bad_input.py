"""Errors of pipelined models, raised on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import ringar
from ringar.parallel import Pipelined
from tests.parallel.conftest import OpenGrid
from tests.parallel.pipeline import nets

pytestmark = [pytest.mark.usefixtures("initialized"), pytest.mark.ranks(2)]

layers = keras.layers


def pipelined(**options: Any) -> Pipelined:
    return Pipelined(nets.residual(), **{"cuts": nets.CUTS[2], **options})


def test_arguments() -> None:
    for options, message in (
        ({"schedule": "lazy"}, "`schedule` must be one of"),
        ({"microbatches": 0}, "`microbatches` must be a positive whole number"),
        ({"shrinking": 1.5}, "`shrinking` must be above 0 and at most 1"),
        ({"cuts": ["nowhere"]}, "`cuts` must be names of layers"),
        ({"modules": 3}, "`data` x `model` must be the number of ranks"),
    ):
        with pytest.raises(ValueError, match=message):
            pipelined(**options)


def test_a_grid_of_another_number(open_grid: OpenGrid) -> None:
    with pytest.raises(ValueError, match="`modules` must be the number of parts of the grid"):
        pipelined(modules=1, grid=open_grid(2))


def test_what_cannot_be_compiled(open_grid: OpenGrid) -> None:
    model = pipelined(grid=open_grid(2), schedule="microbatch")
    adam = keras.optimizers.Adam
    total = keras.losses.MeanSquaredError(reduction="sum")
    for arguments, message in (
        ({"optimizer": ringar.DistributedOptimizer(adam())}, "`optimizer` must be a plain one"),
        ({"optimizer": adam(global_clipnorm=1.0)}, "`global_clipnorm` must be None"),
        ({"optimizer": adam(loss_scale_factor=2.0)}, "`optimizer` must not scale the loss"),
        ({"steps_per_execution": 4}, "`steps_per_execution` must be 1"),
        ({"loss": total}, "The losses must be means"),
    ):
        with pytest.raises(ValueError, match=message):
            model.compile(**{"loss": nets.loss(), **arguments})
    with pytest.raises(ValueError, match="must be compiled"):
        model(nets.batches(1)[0][0])


def test_float16(open_grid: OpenGrid) -> None:
    x = keras.Input((4,))
    dense = layers.Dense(2, dtype="mixed_float16", name="half")
    with pytest.raises(ValueError, match="Received: layer half with dtype policy"):
        Pipelined(keras.Model(x, layers.Dense(2, name="out")(dense(x))), grid=open_grid(2))


def test_other_examples(open_grid: OpenGrid, rank: int) -> None:
    model = pipelined(grid=open_grid(2))
    model.compile("sgd", nets.loss())
    with pytest.raises(ValueError, match=r"The examples must be the same .* \(rank 1\)"):
        model.fit(nets.dataset(nets.batches(2, seed=rank)), verbose=0)


def test_other_numbers_of_steps(open_grid: OpenGrid, rank: int) -> None:
    model = pipelined(grid=open_grid(2))
    model.compile("sgd", nets.loss())
    with pytest.raises(ValueError, match=r"same number of steps on every rank; received 2 \(rank"):
        model.fit(nets.dataset(nets.batches(2 + rank)), verbose=0)


def test_callbacks(open_grid: OpenGrid, rank: int, tmp_path: Path) -> None:
    model = pipelined(grid=open_grid(2))
    model.compile("sgd", nets.loss())
    data = nets.dataset(nets.batches(2))
    with pytest.raises(ValueError, match="must not have BackupAndRestore"):
        model.fit(data, callbacks=[keras.callbacks.BackupAndRestore(tmp_path)], verbose=0)
    with pytest.raises(ValueError, match="must not have SaveOnSignal"):
        model.fit(data, callbacks=[ringar.callbacks.SaveOnSignal(tmp_path)], verbose=0)
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "new" / "model.keras")
    with pytest.raises(ValueError, match="the same checkpoints on every rank"):
        model.fit(data, callbacks=[checkpoint] if rank == 0 else [], verbose=0)


def test_metrics_that_are_no_numbers(open_grid: OpenGrid) -> None:
    model = pipelined(grid=open_grid(2))
    model.compile("sgd", "mse", metrics=[keras.metrics.F1Score()])
    x, _ = nets.batches(1)[0]
    y = np.eye(nets.CLASSES)[np.arange(len(x)) % nets.CLASSES]
    with pytest.raises(ValueError, match="must be single numbers. Received: f1_score with 5"):
        model.evaluate(x, y)
    with pytest.raises(ValueError, match="must be single numbers"):
        model.fit(x, y, verbose=0)


def test_inputs(open_grid: OpenGrid) -> None:
    model = pipelined(grid=open_grid(2))
    model.compile("sgd", nets.loss())
    x, y = nets.batches(1)[0]
    with pytest.raises(ValueError, match="`x` must have 1 inputs, named image. Received: 2"):
        model.fit([x, x], y, verbose=0)
    history = model.fit({"image": x}, y, epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


def test_arrays_are_shuffled_alike_without_a_seed(open_grid: OpenGrid, rank: int) -> None:
    model = pipelined(grid=open_grid(2))
    model.compile("sgd", nets.loss())
    x, y = (np.concatenate(arrays) for arrays in zip(*nets.batches(4), strict=True))
    keras.utils.set_random_seed(rank)
    assert len(model.fit(x, y, batch_size=8, epochs=2, verbose=0).history["loss"]) == 2
