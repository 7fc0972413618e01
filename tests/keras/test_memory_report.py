"""The memory report: bytes by shapes, and a measured step."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import ringar

pytestmark = pytest.mark.ranks(1)

K = keras.optimizers


def model(width: int = 10) -> keras.Model:
    layers = [keras.layers.Dense(width, trainable=False), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((7,)), *layers])


def row(report: ringar.MemoryReport, shard: str | None, ranks: int) -> ringar.MemoryRow:
    return next(r for r in report.rows if (r.shard, r.ranks) == (shard, ranks))


def test_bytes_are_those_of_the_formula() -> None:
    report = ringar.memory_report(model(), K.Adam(amsgrad=True), ranks=(1, 2, 4))
    all_bytes, trained_bytes = 4 * (7 * 10 + 10 + 33), 4 * 33
    scalars = 8 + 4  # the number of steps and the learning rate
    assert len(report.rows) == 12
    for ranks, kernel, bias in ((1, 30, 3), (2, 15, 2), (4, 8, 1)):
        cut = 4 * (kernel + bias)
        for shard, gradients in (("optimizer", trained_bytes), ("gradients", cut)):
            entry = row(report, shard, ranks)
            expected = (all_bytes, gradients, 3 * cut + scalars)
            assert (entry.weights, entry.gradients, entry.slots) == expected
            assert entry.activations is None
            assert entry.total == sum(expected)
        entry = row(report, "weights", ranks)
        # One layer is trained, and so gathered whole.
        weights = all_bytes if ranks == 1 else all_bytes - trained_bytes + cut + trained_bytes
        assert (entry.weights, entry.gradients, entry.slots) == (weights, cut, 3 * cut + scalars)
        assert row(report, None, ranks).slots == 3 * trained_bytes + scalars
    assert "gradients" in str(report)
    assert report.that_fit() == report.rows


def test_slots_on_disk_are_those_of_one_variable() -> None:
    report = ringar.memory_report(model(), K.Adam(amsgrad=True), ranks=(2,), offload="disk")
    scalars = 8 + 4
    for shard in ("optimizer", "gradients"):
        assert row(report, shard, 2).slots == 3 * 4 * 15 + scalars  # of the kernel
    assert row(report, None, 2).slots == 3 * 4 * 33 + scalars


def test_activations_are_measured() -> None:
    rows, width, layers = 4096, 512, 6
    stack = [keras.layers.Dense(width, activation="relu") for _ in range(layers)]
    deep = keras.Sequential([keras.Input((width,)), *stack])
    before = [np.array(w) for w in deep.get_weights()]
    report = ringar.memory_report(deep, "adam", np.ones((rows, width), np.float32), ranks=(1,))
    received = row(report, None, 1).activations
    layer_bytes = rows * width * 4
    # The output of each layer is kept for the backward pass. What other tests have freed, and the
    # process has kept, is used first, and does not count.
    assert received is not None
    assert 0.4 * layers * layer_bytes < received < 4 * layers * layer_bytes
    for a, b in zip(deep.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="`model` must be built"):
        ringar.memory_report(keras.Sequential([keras.layers.Dense(1)]), "adam")
    with pytest.raises(ValueError, match="Lamb computes with whole variables"):
        ringar.memory_report(model(), K.Lamb())
