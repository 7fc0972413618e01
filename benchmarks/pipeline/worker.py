"""Trains a residual CNN by one plan on one rank: `python -m benchmarks.pipeline.worker OPTIONS`.

A plan is one process with plain Keras, data parallelism, or modules. The first steps are for their
losses, each on a batch of its own: these losses must be those of `reference_losses`. Later steps
are timed, all in a row, since modules that wait for each other after each step are no pipeline:
from the end of one step to the end of another, on the rank's own clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.harness.worker import now_bytes, peak_bytes, read_options, start, write_report

CLASSES, SIDE, STAGES = 10, 32, 3
BATCHES, CHECKED_STEPS, WARM_STEPS = 8, 6, 4
SCHEDULES = ("microbatch", "delayed", "decoupled")

Options = dict[str, Any]
Report = dict[str, Any]


def residual(blocks: int, width: int) -> Any:
    """Builds three stages of blocks, of 32 x 32, 16 x 16 and 8 x 8 pixels; no batch statistics.

    As many multiplications in each stage, so that the middle, where it is cut in two, has few
    pixels. A block begins as almost the identity, without which it would need normalization.
    """
    import keras

    layers = keras.layers
    keras.utils.set_random_seed(1)
    small = keras.initializers.VarianceScaling(1 / (STAGES * blocks), seed=1)

    def convolution(channels: int, name: str, strides: int = 1, **options: Any) -> Any:
        return layers.Conv2D(channels, 3, strides, padding="same", name=name, **options)

    images = keras.Input((SIDE, SIDE, 3), name="images")
    x = images
    for stage in range(STAGES):
        channels = width << stage
        first = convolution(channels, f"conv{stage}", 2 if stage else 1, activation="relu")
        x = first(x)
        for block in range(blocks):
            name = f"{stage}_{block}"
            y = convolution(channels, f"conv{name}a", activation="relu")(x)
            y = convolution(channels, f"conv{name}b", kernel_initializer=small)(y)
            x = layers.ReLU(name=f"block{name}")(layers.Add(name=f"add{name}")([x, y]))
    x = layers.GlobalAveragePooling2D(name="mean")(x)
    return keras.Model(images, layers.Dense(CLASSES, name="logits")(x), name="residual")


def data(batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns some batches, the same in every process: (BATCHES, batch, ...)."""
    random = np.random.default_rng(5)
    images = random.normal(size=(BATCHES, batch, SIDE, SIDE, 3)).astype(np.float32)
    return images, random.integers(0, CLASSES, (BATCHES, batch))


def optimizer() -> Any:
    import keras

    # Fast enough that a gradient which comes a step too late or too early shows in the losses.
    return keras.optimizers.SGD(0.05, momentum=0.9)


def loss() -> Any:
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def reference_losses(
    model: Any, batches: Sequence[tuple[Any, Any]], cuts: Sequence[str], staleness: Sequence[int]
) -> list[float]:
    """Applies the update rule of pipelined training to the whole model in one process.

    In step t module k applies the gradient of batch t - s_k at the weights that this batch has met,
    with an optimizer of its own, and nothing in the first s_k steps.

    Args:
        model: the plain model.
        batches: of each step.
        cuts: the names of the layers after which a module ends.
        staleness: s_k of each module.

    Returns:
        The loss of each batch before the update of its step.
    """
    import tensorflow as tf

    names = [layer.name for layer in model.layers]
    ends = [names.index(cut) for cut in cuts]
    modules: list[list[Any]] = [[] for _ in staleness]
    for place, layer in enumerate(model.layers):
        modules[sum(place > end for end in ends)] += layer.trainable_variables
    optimizers = [optimizer() for _ in modules]
    objective = loss()

    @tf.function
    def loss_and_gradients(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = objective(y, model(x, training=True))
        return value, tape.gradient(value, modules)

    losses, gradients = [], []
    for step, (x, y) in enumerate(batches):
        value, step_gradients = loss_and_gradients(tf.constant(x), tf.constant(y))
        losses.append(float(value))
        gradients.append(step_gradients)
        for k, delay in enumerate(staleness):
            if step >= delay and modules[k]:
                optimizers[k].apply(gradients[step - delay][k], modules[k])
    return losses


@dataclass
class Window:
    """The steps that are timed, with functions to call at their begin and end."""

    first: int
    last: int
    at_begin: Callable[[], None]
    at_end: Callable[[], None]
    begin: float = 0.0
    end: float = 0.0

    def note(self, step: int, logs: Any = None) -> None:
        """Is called after each step, counted from 0."""
        if step + 1 == self.first:
            self.at_begin()
            self.begin = time.monotonic()
        elif step + 1 == self.last:
            self.end = time.monotonic()
            self.at_end()

    @property
    def seconds(self) -> float:
        """The seconds of one step."""
        return (self.end - self.begin) / (self.last - self.first)


def shares(events: Sequence[dict[str, Any]], begin: float, end: float) -> dict[str, float]:
    """Returns the part of the time from `begin` to `end` that each kind of event takes."""
    parts: dict[str, float] = {}
    for event in events:
        inside = min(event["end"], end) - max(event["begin"], begin)
        parts[event["what"]] = parts.get(event["what"], 0.0) + max(0.0, inside) / (end - begin)
    return parts


def pipelined(options: Options, cuts: list[str] | None) -> Any:
    """Returns the model in modules."""
    import ringar

    return ringar.parallel.Pipelined(
        residual(options["blocks"], options["width"]), cuts=cuts, batch_size=options["batch"],
        schedule=options["plan"] if options["plan"] in SCHEDULES else "delayed",
        microbatches=options["microbatches"], grid=ringar.parallel.Grid(model=options["ranks"]),
    )  # fmt: skip


def find_cuts(options: Options) -> Report:
    """Returns the cuts that `Pipelined` chooses from the times of the layers."""
    return {"cuts": pipelined(options, None).cuts}


def references(options: Options) -> Report:
    """Returns the losses of each update rule in `staleness`."""
    batches = list(zip(*data(options["batch"]), strict=True))[:CHECKED_STEPS]
    model = residual(options["blocks"], options["width"])
    weights = model.get_weights()
    losses = {}
    for name, staleness in options["staleness"].items():
        model.set_weights(weights)
        losses[name] = reference_losses(model, batches, options["cuts"], staleness)
    return {"losses": losses}


def train(options: Options) -> Report:
    """Runs steps that are checked, steps to get warm, and timed steps."""
    import keras
    import tensorflow as tf

    before = now_bytes()
    plan, callbacks = options["plan"], []
    dataset = tf.data.Dataset.from_tensor_slices(data(options["batch"]))
    if plan in SCHEDULES:
        model = pipelined(options, options["cuts"])
        model.compile(optimizer(), loss())
    else:
        model = residual(options["blocks"], options["width"])
        local_optimizer = optimizer()
        if plan == "data-parallel":
            import ringar

            dataset = ringar.data.shard(dataset, split_batches=True)
            local_optimizer = ringar.DistributedOptimizer(local_optimizer)
            callbacks = [ringar.callbacks.Distributed()]
        model.compile(local_optimizer, loss(), jit_compile=False)
    dataset = dataset.repeat()
    history = model.fit(dataset, epochs=CHECKED_STEPS, steps_per_epoch=1, verbose=0,
                        callbacks=callbacks)  # fmt: skip
    byte_counts: list[int] = []
    events: list[Any] = []

    def begin() -> None:
        if options["ranks"] > 1:
            import ringar

            ringar.reset_stats()
        if plan in SCHEDULES:
            model.record(True)

    def end() -> None:
        if options["ranks"] > 1:
            import ringar

            traffic = ringar.stats("collective").values()
            byte_counts.append(sum(count.bytes for count in traffic))
        if plan in SCHEDULES:
            events.extend(asdict(event) for event in model.record(False))

    steps = WARM_STEPS + options["steps"]
    window = Window(WARM_STEPS, steps, begin, end)
    timing = keras.callbacks.LambdaCallback(on_train_batch_end=window.note)
    model.fit(dataset, epochs=1, steps_per_epoch=steps, verbose=0, callbacks=[*callbacks, timing])
    return {
        "losses": history.history["loss"],
        "seconds": window.seconds,
        "begin": window.begin,
        "end": window.end,
        "memory": peak_bytes() - before,
        "bytes": sum(byte_counts) / options["steps"],
        "shares": shares(events, window.begin, window.end),
        "events": events,
    }


TASKS = {"cuts": find_cuts, "references": references}
"""Jobs that are no plan to train, by name."""


def main() -> None:
    options = read_options()
    rank = start(options, deadline=120)
    write_report(options, rank, TASKS.get(options["plan"], train)(options))
    if options["ranks"] > 1:
        import ringar

        ringar.shutdown()


if __name__ == "__main__":
    main()
