"""A rank that stops in the middle of an epoch stops all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import ringar
from tests.keras import common, uneven

pytestmark = pytest.mark.usefixtures("initialized")

Exchange = Callable[[Any], list[Any]]


class Counter(keras.callbacks.Callback):
    """Counts batches; one rank stops after one of them."""

    def __init__(self, stops_at: int | None) -> None:
        super().__init__()
        self.batches = 0
        self.stops_at = stops_at

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.batches += 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.batches == self.stops_at:
            self.model.stop_training = True


@pytest.mark.parametrize(
    ("has_length", "at", "options"),
    [
        (True, 3, {}),
        (False, 3, {}),
        (True, 9, {}),
        (True, 10, {}),
        (True, 3, {"jit_compile": True}),
        (True, 3, {"steps_per_execution": 2}),
    ],
)
def test_one_rank_stops_all(
    has_length: bool, at: int, options: dict[str, Any], rank: int, size: int, exchange: Exchange
) -> None:
    counter = Counter(at if rank == size - 1 else None)
    batches = [common.regression(4, seed=10 * rank + k) for k in range(10)]
    model, history = uneven.train(
        common.dense_model,
        batches,
        distributed=True,
        has_length=has_length,
        epochs=3,
        callbacks=[counter],
        loss="mse",
        **options,
    )
    counts = exchange(counter.batches)
    per_call = options.get("steps_per_execution", 1)
    assert counts[-1] == at if per_call == 1 else counts[-1] <= at
    assert all(count <= min(at + 2, 10) for count in counts)
    assert len(set(counts[:-1])) <= 1
    assert len(history["loss"]) == 1
    assert len(set(exchange(common.digest(model)))) == 1


def test_nan_on_one_rank_stops_all(rank: int, size: int, exchange: Exchange) -> None:
    counter = Counter(None)
    batches = [common.regression(4, seed=k) for k in range(10)]
    if rank == size - 1:
        batches[2] = (batches[2][0], batches[2][1] * np.nan)
    model, history = uneven.train(
        common.dense_model,
        batches,
        distributed=True,
        epochs=3,
        callbacks=[keras.callbacks.TerminateOnNaN(), counter],
        loss="mse",
    )
    assert exchange(counter.batches)[-1] == 3
    assert max(exchange(counter.batches)) <= 5
    assert len(history["loss"]) == 1
    assert all(np.isnan(value).all() for value in common.values(model))


@pytest.mark.ranks(2, 3, 4)
def test_a_stop_before_validation(rank: int, exchange: Exchange) -> None:
    """The rank that stops must not validate while the others wait for it."""
    batches = [common.regression(4, seed=k) for k in range(6)]
    model, _ = uneven.train(
        common.dense_model,
        batches,
        distributed=True,
        callbacks=[Counter(2 if rank == 0 else None)],
        loss="mse",
    )
    x, y = common.regression(8)
    model.fit(
        x,
        y,
        batch_size=2,
        validation_data=(x, y),
        verbose=0,
        callbacks=[ringar.callbacks.Distributed(), Counter(2 if rank == 1 else None)],
    )
    assert len(set(exchange(common.digest(model)))) == 1


@pytest.mark.ranks(2, 3)
def test_a_callback_on_one_rank_decides_at_an_epochs_end(rank: int, exchange: Exchange) -> None:
    """It stops all ranks; weights and learning rates that it changes there are errors."""

    def fit(*callbacks: keras.callbacks.Callback) -> list[int]:
        model = common.dense_model(seed=0)
        model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
        callbacks_of_rank = [ringar.callbacks.Distributed(), *(callbacks if rank == 0 else ())]
        x, y = common.regression(8, seed=rank)
        epochs: list[int] = model.fit(x, y, 4, 4, verbose=0, callbacks=callbacks_of_rank).epoch
        return epochs

    stop = keras.callbacks.EarlyStopping("loss", mode="max", patience=1)
    assert exchange(fit(stop)) == [[0, 1]] * ringar.size()
    with pytest.raises(ringar.errors.MismatchError, match="other values of .*kernel"):
        fit(keras.callbacks.EarlyStopping("loss", mode="max", restore_best_weights=True))
    slower = keras.callbacks.ReduceLROnPlateau("loss", mode="max", patience=1, factor=0.5)
    with pytest.raises(ringar.errors.MismatchError, match=r"0.05 \(rank 0\), 0.1 \(rank 1\)"):
        fit(slower)
