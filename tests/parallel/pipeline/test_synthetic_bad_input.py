"""Errors of decoupled models, raised on every rank."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from ringar.parallel import Pipelined, Synthesizer
from tests.parallel.conftest import OpenGrid
from tests.parallel.pipeline import synthetic_nets as nets

pytestmark = [pytest.mark.usefixtures("initialized")]

layers = keras.layers


def dense(inputs: tuple[int, ...], units: int) -> keras.Model:
    return keras.Sequential([keras.Input(inputs), layers.Dense(units)], name="mine")


def fails(inputs: Any, outputs: Any) -> keras.Model:
    raise TypeError("mine")


def pipelined(grid: Any, **options: Any) -> Pipelined:
    options = {"schedule": "synthetic", "cuts": nets.cuts(2), **options}
    return Pipelined(nets.net(), grid=grid, **options)


@pytest.mark.ranks(2)
def test_arguments(open_grid: OpenGrid, rank: int) -> None:
    grid = open_grid(2)
    for options, message in (
        ({"update_probability": 0.0}, "`update_probability` must be above 0 and at most 1"),
        ({"bp_lambda": 1.5}, "`bp_lambda` must be from 0 to 1"),
        ({"ahead": 0}, "`ahead` must be a positive whole number"),
        ({"synthesizer": "false"}, '`synthesizer` must be .*, "true" or "zero"'),
        ({"synthetic_inputs": "true"}, "`synthetic_inputs` must be True, a Keras model"),
        ({"synthesizer": [dense((8,), 8)] * 2}, "There must be a synthesizer for each of 1 cuts"),
        ({"synthesizer": dense((8,), 7)}, r"outputs of shape \[batch, 8\]. Received: mine with"),
        ({"synthesizer": dense((6,), 8)}, r"inputs of shape \[batch, 8\]. Received: mine with"),
        (
            {"synthesizer": dense((8,), 8), "conditioned": True},
            r"inputs of shape \[batch, 8\], \[batch, 3\]",
        ),
        ({"synthetic_inputs": dense((6,), 9)}, r"outputs of shape \[batch, 8\]"),
        ({"synthesizer": lambda inputs, outputs: None}, "must be a Keras model"),
        ({"synthesizer": True}, "`synthesizer` must be a Keras model"),
        ({"bp_lambda": 0.25 * rank}, "the same `bp_lambda` on every rank"),
        ({"synthesizer_optimizer": ("sgd", "adam")[rank]}, "the same `synthesizer_optimizer`"),
        ({"schedule": "delayed", "conditioned": rank > 0}, "the same `conditioned` on every rank"),
        ({"synthesizer": fails}, "mine"),
        ({"synthesizer_optimizer": "adma"}, "`synthesizer_optimizer` must be an optimizer"),
        ({"schedule": ("synthetic", "delayed")[rank]}, "the same `schedule` on every rank"),
        ({"schedule": "delayed", "shrinking": 1 - rank / 2}, "the same `shrinking` on every rank"),
        ({"cuts": [f"dense{rank}"]}, "the same `cuts` on every rank"),
        ({"schedule": "delayed", "conditioned": True}, '`conditioned` is for schedule="synthetic'),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            pipelined(grid, **options)


class Own(keras.optimizers.SGD):
    """An optimizer of the user, with a setting that is an object, or without a configuration."""

    def __init__(self, setting: object = None) -> None:
        super().__init__(0.1, name=f"own{id(self)}")
        self.setting = setting

    def get_config(self) -> dict[str, Any]:
        if self.setting is None:
            raise NotImplementedError
        return {"setting": self.setting, "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Own:
        return cls(config["setting"])


@pytest.mark.ranks(2)
def test_optimizers_that_differ(open_grid: OpenGrid, rank: int) -> None:
    """Their settings are compared: not their names, nor objects, which have addresses."""
    adam, grid = keras.optimizers.Adam, open_grid(2)
    steps = keras.optimizers.schedules.CosineDecay(0.1, 10 + rank)
    for optimizer, message in (
        (adam(0.25 + rank), r"same `synthesizer_optimizer.learning_rate` .* 0\.25 .*, 1\.25 "),
        (adam(beta_1=np.float32(rank / 2)), "the same `synthesizer_optimizer.beta_1`"),
        (adam(steps), "(?s)same `synthesizer_optimizer.learning_rate` .*'decay_steps': 10.*: 11"),
        (adam(steps if rank else 0.1), "the same `synthesizer_optimizer.learning_rate`"),
        (Own(np.arange(rank)), "the same `synthesizer_optimizer.setting` on every rank"),
        (Own(1 if rank else None), "same `synthesizer_optimizer.setting` .* nothing .*, 1 "),
        (Own(), "`synthesizer_optimizer` must be an optimizer of Keras"),
    ):
        with pytest.raises(ValueError, match=message):
            pipelined(grid, synthesizer_optimizer=optimizer)
    pipelined(grid, synthesizer_optimizer=Own(object()), synthesizer="zero")


@pytest.mark.ranks(2)
def test_models_that_differ(open_grid: OpenGrid, rank: int) -> None:
    def named(units: int) -> keras.Model:
        hidden = layers.Dense(units, name="hidden")
        return keras.Sequential([keras.Input((6,)), hidden, layers.Dense(3, name="out")])

    grid = open_grid(2)
    for models, received in (
        ([named(8), named(9)], r"hidden \(None, 8\) .*\(rank 0\), hidden \(None, 9\)"),
        ([named(8), keras.Model(name="mine")], r".* Received: Model mine \(rank 1\)"),
    ):
        with pytest.raises(
            ValueError, match=f"(?s)the same layer [01] of `model` .* received\\s*{received}"
        ):
            Pipelined(models[rank], schedule="synthetic", cuts=["hidden"], grid=grid)


@pytest.mark.ranks(2)
def test_tensors_without_a_row_of_known_size_per_example(open_grid: OpenGrid) -> None:
    series, steps = keras.Input((None, 2)), keras.Input((4, 2))
    grid, rows = open_grid(2), keras.ops.reshape(steps, (-1, 2))
    for inputs, last, shape in (
        (series, layers.Conv1D(3, 1, name="cut")(series), r"\(64, None, 3\)"),
        (steps, layers.Dense(3, name="cut")(rows), r"\(256, 3\)"),
    ):
        net = keras.Model(inputs, layers.Dense(1, name="out")(last))
        with pytest.raises(ValueError, match=f"output of layer cut, of shape {shape} for 64"):
            Pipelined(net, schedule="synthetic", synthesizer="true", cuts=["cut"], grid=grid)


@pytest.mark.ranks(2)
def test_labels_that_do_not_fit(open_grid: OpenGrid) -> None:
    model = pipelined(open_grid(2), conditioned=True, synthesizer=Synthesizer(0))
    model.compile("sgd", "mse", run_eagerly=True)
    x = np.zeros((8, nets.FEATURES), np.float32)
    with pytest.raises(ValueError, match=r"`y` must have the shape \('batch', 3\)"):
        model.fit(x, np.zeros((8, 4)), verbose=0)
    assert np.isfinite(model.fit(x, np.zeros((8, 3)), verbose=0).history["loss"]).all()


@pytest.mark.ranks(2)
def test_messages_of_other_schedules(open_grid: OpenGrid) -> None:
    model = pipelined(open_grid(2), schedule="delayed")
    model.compile("sgd", nets.loss(), run_eagerly=True)
    with pytest.raises(ValueError, match='Messages are recorded with schedule="synthetic"'):
        model.record_messages()
    with pytest.raises(ValueError, match="A run is replayed by a compiled model with"):
        model.replay([], [])


@pytest.mark.ranks(1)
def test_synthesizers() -> None:
    for options, message in (
        ({"hidden_layers": -1}, "`hidden_layers` must be a whole number of at least 0"),
        ({"hidden_layers": None}, "`hidden_layers` must be a whole number of at least 0"),
        ({"units": 0}, "`units` must be a whole number of at least 1"),
        ({"kernel_size": 2.5}, "`kernel_size` must be a whole number"),
    ):
        with pytest.raises(ValueError, match=message):
            Synthesizer(**options)
