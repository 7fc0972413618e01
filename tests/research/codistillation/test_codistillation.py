"""Codistillation, against its formula in NumPy, and in the cases in which ranks differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.research.codistillation import distances
from tests.interruption import Interrupt
from tests.keras import common, uneven
from tests.plugin import fast_if
from tests.research.codistillation import teaching

pytestmark = pytest.mark.usefixtures("initialized")

Exchange = Callable[[Any], list[Any]]

#: The groups of each number of ranks.
GROUPS = {1: 1, 2: 2, 3: 3, 4: 2}
RATE = 0.2
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def group_of(rank: int, size: int, groups: int | None = None) -> int:
    return rank // (size // (groups or GROUPS[size]))


def batches_of(rank: int, steps: int = 5) -> list[teaching.Batch]:
    return [teaching.classes(4, 100 * rank + step) for step in range(steps)]


def codistilled(rank: int, size: int, groups: int | None = None, **settings: Any) -> keras.Model:
    """A model whose weights differ between groups, and at first within them."""
    model = teaching.classifier(seed=rank)
    settings = {"exchange_period": 2, "from_logits": True, **settings}
    student: keras.Model = ringar.Codistillation(model, groups or GROUPS[size], **settings)
    return student


def fit(
    model: keras.Model,
    batches: Any,
    *,
    epochs: int = 2,
    optimizer: Any = None,
    callbacks: Any = (),
    has_length: bool = True,
    options: Any = None,
) -> dict[str, list[float]]:
    model.compile(optimizer or keras.optimizers.SGD(RATE), LOSS, **(options or {}))
    history: dict[str, list[float]] = model.fit(
        uneven.dataset(batches, has_length),
        epochs=epochs,
        verbose=0,
        callbacks=[ringar.callbacks.Distributed(), *callbacks],
    ).history
    return history


def together(of_ranks: Any) -> list[list[uneven.Batch]]:
    """The batches of each group in one process."""
    size = len(of_ranks)
    ranks = size // GROUPS[size]
    return [uneven.together(of_ranks[first : first + ranks]) for first in range(0, size, ranks)]


def teachers(model: keras.Model) -> Any:
    return model._codistillation.teachers


@pytest.mark.parametrize(
    ("distance", "burn_in", "period", "options"),
    [
        ("kl", 0, 3, {"jit_compile": True}),
        ("mse", 4, 2, {"jit_compile": False}),
        ("kl", 3, 1, {"run_eagerly": True}),
        fast_if(False, "mse", 0, 1, {"jit_compile": True}),
        fast_if(False, "kl", 7, 50, {"jit_compile": True}),
        fast_if(False, "mse", 0, 3, {"run_eagerly": True}),
    ],
    ids=str,
)
def test_the_papers_formula(
    distance: str, burn_in: int, period: int, options: Any, rank: int, size: int, exchange: Exchange
) -> None:
    groups = GROUPS[size]
    settings: Any = {"distance": distance, "burn_in": burn_in, "alpha": 0.7}
    model = codistilled(rank, size, exchange_period=period, **settings)
    ranks = range(0, size, size // groups)
    initial = [common.values(teaching.classifier(first)) for first in ranks]
    fit(model, batches_of(rank), options=options)
    batches = together([batches_of(r) for r in range(size)])
    settings |= {"period": period, "rate": RATE}
    taught, untaught = (
        teaching.train(initial, batches, 2, **{**settings, "alpha": alpha})
        for alpha in (settings["alpha"], 0.0)
    )
    assert common.largest_difference(common.values(model), taught[model.group]) < 1e-5
    if groups > 1:  # the distances count
        assert common.largest_difference(common.values(model), untaught[model.group]) > 1e-3


@pytest.mark.ranks(4)
def test_each_rank_a_group(rank: int, size: int) -> None:
    model = codistilled(rank, size, groups=4)
    fit(model, batches_of(rank))
    expected = teaching.train(
        [common.values(teaching.classifier(r)) for r in range(4)],
        [batches_of(r) for r in range(4)],
        epochs=2,
        distance="kl",
        alpha=1.0,
        burn_in=0,
        period=2,
        rate=RATE,
    )
    assert common.largest_difference(common.values(model), expected[rank]) < 1e-5


def test_alpha_0_is_independent_training(rank: int, size: int) -> None:
    model = codistilled(rank, size, alpha=0.0)
    ringar.reset_stats()
    fit(model, batches_of(rank), optimizer=keras.optimizers.Adam(0.01))
    assert not [name for name in ringar.stats(by="layer") if name.startswith("codistillation/w")]
    other = teaching.classifier(seed=rank)
    optimizer = keras.optimizers.Adam(0.01)
    if model.process_set.size() == 1:  # Keras alone
        other.compile(optimizer, LOSS)
        other.fit(uneven.dataset(batches_of(rank)), epochs=2, verbose=0)
    else:
        wrapped = ringar.DistributedOptimizer(optimizer, process_set=model.process_set)
        fit(other, batches_of(rank), optimizer=wrapped)
    assert common.digest(model) == common.digest(other)


def test_no_gradient_passes_through_teachers(rank: int, size: int) -> None:
    model = codistilled(rank, size)
    model.compile("sgd", LOSS)
    if teachers(model) is None:
        return
    x, y = map(tf.constant, batches_of(rank)[0])
    state = teachers(model).variables()
    copies = [v for v in state if v.dtype.is_floating]
    with tf.GradientTape() as tape:
        for copy in copies:
            tape.watch(copy)
        loss = model.compute_loss(x, y, model(x, training=True), training=True)
    gradients = tape.gradient(loss, [*copies, *model.trainable_variables])
    assert len(copies) == (GROUPS[size] - 1) * len(model.weights)
    assert all(gradient is None for gradient in gradients[: len(copies)])
    assert all(gradient is not None for gradient in gradients[len(copies) :])
    assert float(loss) > float(model.compute_loss(x, y, model(x), training=False))


@pytest.mark.parametrize("has_length", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("period", [1, fast_if(False, 2), fast_if(False, 50)])
def test_different_numbers_of_batches(
    has_length: bool, period: int, rank: int, size: int, exchange: Exchange
) -> None:
    of_ranks = uneven.batches_of(size, teaching.classes)
    model = codistilled(rank, size, exchange_period=period)
    history = fit(model, of_ranks[rank], epochs=3, has_length=has_length)
    everybody = exchange(
        (model.group, [v.tobytes() for v in common.values(model)], history["loss"])
    )
    for group, weights, losses in everybody:
        is_own = group == model.group
        assert (weights == everybody[rank][1]) == is_own
        assert (losses == history["loss"]) == is_own
    first = range(0, size, size // GROUPS[size])
    lengths = [len(share) for share in of_ranks]
    expected = teaching.train(
        [common.values(teaching.classifier(r)) for r in first],
        together(of_ranks),
        3,
        [min(lengths[r : r + size // GROUPS[size]]) for r in first],
        distance="kl",
        alpha=1.0,
        burn_in=0,
        period=period,
        rate=RATE,
    )
    assert common.largest_difference(common.values(model), expected[model.group]) < 1e-5


def test_groups_stop_in_different_epochs(rank: int, size: int) -> None:
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if self.model.group == 0 and epoch == 1:
                self.model.stop_training = True

    model = codistilled(rank, size)
    for _ in range(2):  # another `fit` begins together
        history = fit(
            model, batches_of(rank, 3 + group_of(rank, size)), epochs=4, callbacks=[Stop()]
        )
        assert len(history["loss"]) == (2 if model.group == 0 else 4)


def test_an_interrupted_run_goes_on(rank: int, size: int, shared_tmp_path: Path) -> None:
    def trained(*callbacks: Any) -> keras.Model:
        model = codistilled(rank, size, exchange_period=4)
        fit(model, batches_of(rank), epochs=3, callbacks=callbacks)
        return model

    group = group_of(rank, size)
    backup = keras.callbacks.BackupAndRestore(shared_tmp_path / f"group {group}", save_freq=3)
    expected = trained()
    with pytest.raises(InterruptedError):
        trained(backup, Interrupt(8))
    assert common.digest(trained(backup)) == common.digest(expected)


def test_files_have_the_plain_model(rank: int, size: int, shared_tmp_path: Path) -> None:
    model = codistilled(rank, size)
    best = shared_tmp_path / f"best {model.group}.keras"
    fit(model, batches_of(rank), callbacks=[keras.callbacks.ModelCheckpoint(best)])
    assert type(model).__name__ == "CodistilledSequential"
    loaded = keras.models.load_model(best)
    assert type(loaded) is keras.Sequential
    assert common.largest_difference(common.values(loaded), common.values(model)) == 0.0


def test_groups_do_not_write_to_the_same_file(rank: int, size: int, shared_tmp_path: Path) -> None:
    model = codistilled(rank, size)
    if GROUPS[size] == 1:
        return
    with pytest.raises(ValueError, match=r"files of its own for each group.*model\.group"):
        fit(model, batches_of(rank), callbacks=[keras.callbacks.CSVLogger(shared_tmp_path / "log")])


@pytest.mark.parametrize("precision", ["float32", fast_if(False, "mixed_float16")])
def test_several_outputs_and_layers_with_state(
    precision: str, rank: int, size: int, policy: Callable[[str], None]
) -> None:
    policy(precision)
    keras.utils.set_random_seed(rank)
    inputs = keras.Input((teaching.FEATURES,))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(8)(inputs))
    hidden = keras.layers.Dropout(0.5)(hidden)
    outputs = {
        "kind": keras.layers.Dense(3, activation="softmax", dtype="float32")(hidden),
        "is_one": keras.layers.Dense(1, activation="sigmoid", dtype="float32")(hidden),
    }
    model = ringar.Codistillation(
        keras.Model(inputs, outputs), GROUPS[size], exchange_period=2, burn_in=1
    )
    losses = {"kind": "sparse_categorical_crossentropy", "is_one": "binary_crossentropy"}
    model.compile(keras.optimizers.SGD(RATE), losses, metrics={"kind": ["accuracy"]})
    x, y = teaching.classes(16, rank)
    data = (x, {"kind": y, "is_one": (y == 1)[:, None].astype(np.float32)})
    history = model.fit(
        *data, 4, 2, verbose=0, callbacks=[ringar.callbacks.Distributed()], validation_data=data
    ).history
    assert np.isfinite([*history["loss"], *history["val_loss"]]).all()


def test_masks_count(rank: int, size: int) -> None:
    """Behind a mask distances do not count, and ranks add up what is left."""
    keras.utils.set_random_seed(rank)
    model = ringar.Codistillation(
        keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                keras.layers.Embedding(12, 5, mask_zero=True),
                keras.layers.Dense(3),
            ]
        ),
        GROUPS[size],
        from_logits=True,
        exchange_period=1,
    )
    model.compile(keras.optimizers.SGD(RATE), LOSS)
    x = common.tokens(8 + 4 * rank, seed=rank)[0]
    history = model.fit(
        tf.data.Dataset.from_tensor_slices((x, x % 3)).batch(4),
        epochs=2,
        verbose=0,
        callbacks=[ringar.callbacks.Distributed()],
    ).history
    assert np.isfinite(history["loss"]).all()


@pytest.mark.ranks(1)
def test_distances() -> None:
    rng = np.random.default_rng(1)
    teacher, logits = rng.normal(size=(2, 5, 3)).astype(np.float32)
    p, q = teaching.softmax(teacher), teaching.softmax(logits)
    expected = np.mean(np.sum(p * np.log(p / q), axis=-1))
    assert float(distances.make("kl", True)(teacher, logits)) == pytest.approx(expected, rel=1e-5)
    assert float(distances.make("kl", False)(p, q)) == pytest.approx(expected, rel=1e-5)
    p, q = (1 / (1 + np.exp(-z[:, :1])) for z in (teacher, logits))
    expected = np.mean(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))
    two = distances.make("kl", True)(teacher[:, :1], logits[:, :1])
    assert float(two) == pytest.approx(expected, rel=1e-4)
    assert float(distances.make("kl", False)(p, q)) == pytest.approx(expected, rel=1e-4)
    assert float(distances.make("kl", False)(p[:, 0], q[:, 0])) == pytest.approx(expected, rel=1e-4)
    squares = distances.make("mse", True)(teacher, logits)
    assert float(squares) == pytest.approx(np.mean((teacher - logits) ** 2), rel=1e-5)


def test_arguments(rank: int, size: int) -> None:
    model = teaching.classifier(0)

    def refuses(message: str, **settings: Any) -> None:
        with pytest.raises(ValueError, match=message):
            ringar.Codistillation(model, **{"groups": GROUPS[size], **settings})

    refuses(rf"`groups` must divide the number of ranks, {size}.*groups=5", groups=5)
    refuses("`groups` must divide", groups=0)
    refuses(r"`alpha` must be a number from 0 on\. Received: alpha=-1", alpha=-1)
    refuses("`alpha` must be", alpha=float("nan"))
    refuses(
        r"`distance` must be \"kl\" or \"mse\"\. Received: distance='cosine'", distance="cosine"
    )
    refuses(r"`burn_in` must be.*burn_in=-1", burn_in=-1)
    refuses(r"`exchange_period` must be a positive number.*exchange_period=0", exchange_period=0)
    with pytest.raises(ValueError, match=r"`model` must be built: give it a keras\.Input"):
        ringar.Codistillation(keras.Sequential([keras.layers.Dense(1)]), GROUPS[size])
    model = codistilled(rank, size)
    refuses("`model` must not be codistilled already")
    if GROUPS[size] > 1:
        with pytest.raises(ValueError, match=r"process_set=model\.process_set.*for the ranks"):
            model.compile(ringar.DistributedOptimizer("sgd"), LOSS)


@pytest.mark.slow
@pytest.mark.ranks(2)
@pytest.mark.deadline(300)
def test_codistillation_lowers_the_disagreement_of_seeds(
    rank: int, size: int, exchange: Exchange
) -> None:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16).astype("float32"), y[order]
    x_test = x[1000:]

    def predicted(seed: int, alpha: float) -> list[np.ndarray]:
        """The predictions of both groups; the seed decides weights, and which images whose."""
        keras.utils.set_random_seed(10 * seed + rank)
        layers = [
            keras.Input((64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
        model = ringar.Codistillation(
            keras.Sequential(layers), alpha=alpha, burn_in=20, exchange_period=5, from_logits=True
        )
        model.compile(keras.optimizers.Adam(3e-3), LOSS)
        order = np.random.default_rng(seed).permutation(300)
        model.fit(
            *ringar.data.shard((x[order], y[order])),
            batch_size=16,
            epochs=30,
            verbose=0,
            callbacks=[ringar.callbacks.Distributed()],
        )
        return exchange(np.argmax(model.predict(x_test, verbose=0), axis=1))

    def disagreements(alpha: float) -> tuple[float, float]:
        """Of the groups of a run, and of a group's models of two runs: means over pairs."""
        runs = [predicted(seed, alpha) for seed in range(4)]
        of_groups = [np.mean(first != second) for first, second in runs]
        pairs = [(a, b) for i, a in enumerate(runs) for b in runs[:i]]
        of_runs = [np.mean(a[group] != b[group]) for a, b in pairs for group in range(2)]
        return float(np.mean(of_groups)), float(np.mean(of_runs))

    coupled, uncoupled = disagreements(1.0), disagreements(0.0)
    assert coupled[0] < 0.7 * uncoupled[0]
    assert coupled[1] < 0.9 * uncoupled[1]
