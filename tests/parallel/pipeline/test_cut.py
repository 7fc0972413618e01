"""Places to cut models, and the modules' networks, which together equal the model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import keras
import numpy as np
import pytest

from ringar.parallel.pipeline import balance, cut
from tests.comparison import assert_all_close
from tests.parallel.pipeline import nets

pytestmark = [pytest.mark.ranks(1)]

layers = keras.layers


def outputs_of_modules(graph: cut.Graph, names: Sequence[str], x: np.ndarray) -> np.ndarray:
    places = cut.places(graph, names, len(names) + 1)
    crossing: list[np.ndarray] = []
    for module in range(len(names) + 1):
        network = cut.network(graph, places, module)
        assert len(network.receives) == len(crossing)
        outputs = network.model([x for _ in network.reads] + crossing)
        crossing = [np.asarray(tensor) for tensor in keras.tree.flatten(outputs)]
    return crossing[0]


@pytest.mark.parametrize(
    "names", [["stem"], ["conv1"], ["norm1", "add1"], ["conv1", "conv2", "tanh2"], ["flat"]]
)
def test_modules_make_the_whole(names: list[str]) -> None:
    model, (x, _) = nets.residual(), nets.batches(1)[0]
    outputs = outputs_of_modules(cut.Graph.of(model), names, x)
    np.testing.assert_allclose(outputs, model(x), rtol=1e-6)


def test_a_skip_connection_crosses_every_cut_on_its_way() -> None:
    graph = cut.Graph.of(nets.residual())
    place = graph.after("norm1")
    assert [t._keras_history.operation.name for t in graph.crossing(place)] == ["stem", "norm1"]
    assert len(graph.crossing(graph.after("add1"))) == 1


def test_sequential_models_are_cut() -> None:
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(3, name="a"), layers.Dense(3, name="b")]
    )
    assert cut.places(cut.Graph.of(model), ["a"], 2) == [1]


def test_a_layer_on_both_sides_prevents_a_cut() -> None:
    twice = layers.Dense(4, name="twice")
    x = keras.Input((4,))
    model = keras.Model(x, twice(layers.ReLU(name="between")(twice(x))))
    with pytest.raises(ValueError, match="layer twice is used on both sides"):
        cut.Graph.of(model).after("between")


def test_a_mask_prevents_a_cut() -> None:
    words = keras.Input((5,), dtype="int32")
    x = layers.Embedding(10, 4, mask_zero=True, name="words")(words)
    model = keras.Model(words, layers.Dense(1)(layers.LSTM(3, name="lstm")(x)))
    graph = cut.Graph.of(model)
    with pytest.raises(ValueError, match="output of layer words, which crosses the cut, has a mas"):
        graph.after("words")
    assert graph.after("lstm") == len(graph.nodes) - 1


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["nothing"], "must be names of layers of the model"),
        (["logits"], "not of the last one"),
        (["add1", "stem"], "in the order in which they run"),
        (["stem", "stem"], "in the order in which they run"),
        (["stem"], "names of `modules - 1` layers"),
    ],
)
def test_wrong_names(names: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cut.places(cut.Graph.of(nets.residual()), names, 3)


def test_models_without_a_graph_are_refused() -> None:
    class Own(keras.Model):
        """A subclass."""

    with pytest.raises(ValueError, match="functional or sequential model that is built"):
        cut.Graph.of(Own())
    with pytest.raises(ValueError, match="that is built"):
        cut.Graph.of(keras.Sequential([layers.Dense(3)]))


@pytest.mark.parametrize("modules", [2, 3, 4])
def test_the_slowest_module_is_as_fast_as_it_can_be(modules: int) -> None:
    graph = cut.Graph.of(nets.residual())
    seconds = list(np.random.default_rng(modules).uniform(1, 10, len(graph.nodes)))

    def slowest(cuts: Sequence[int]) -> float:
        ends = [0, *cuts, len(seconds)]
        return max(sum(seconds[a:b]) for a, b in itertools.pairwise(ends))

    best = min(map(slowest, itertools.combinations(range(1, len(seconds)), modules - 1)))
    assert slowest(balance.partition(graph, seconds, modules)) <= best * 1.02


def test_of_equal_cuts_the_one_that_sends_least_is_taken() -> None:
    graph = cut.Graph.of(nets.residual())
    place = graph.after("add1")
    # All nodes around it take no time: any of these cuts would do.
    seconds = [0.0] * len(graph.nodes)
    seconds[0] = seconds[-1] = 1.0
    (answer,) = balance.partition(graph, seconds, 2)
    sizes = [
        sum(int(np.prod(t.shape[1:])) for t in graph.crossing(p)) for p in (answer, place)
    ]  # fmt: skip
    assert sizes[0] <= sizes[1]


def test_timing_leaves_the_model_as_it_was() -> None:
    x = keras.Input((32, 32, 3))
    y = layers.BatchNormalization(name="norm")(layers.Conv2D(64, 3)(x))
    model = keras.Model(x, layers.Dense(2)(layers.Dropout(0.5)(layers.Flatten()(y))))
    before = [np.array(v) for v in model.variables]
    seconds = balance.seconds_per_node(cut.Graph.of(model), batch_size=32)
    assert len(seconds) == 5
    assert max(seconds) > 0
    assert_all_close(model.variables, before)


def test_inputs_of_unknown_size_cannot_be_timed() -> None:
    x = keras.Input((None, 4))
    model = keras.Model(x, layers.Dense(2)(layers.Dense(2)(x)))
    with pytest.raises(ValueError, match=r"known size .* cuts=\[...\]"):
        balance.seconds_per_node(cut.Graph.of(model), 2)


def test_too_many_modules() -> None:
    x = keras.Input((4,))
    graph = cut.Graph.of(keras.Model(x, layers.Dense(2)(layers.Dense(2)(x))))
    with pytest.raises(ValueError, match="`modules` must be at most 2"):
        balance.partition(graph, [1.0, 1.0], 3)
