"""Four stacked GRUs that read handwritten digits pixel by pixel, in wavefronts over ranks.

    python examples/wavefront.py
    ringarrun -np 2 python examples/wavefront.py
    ringarrun -np 2 python examples/wavefront.py --chunk 0 --units 128

Each digit is a sequence of 64 pixels. On two ranks the first has the two lower layers, and sends
their states in chunks of steps to the second, which begins with the first chunk while the lower
layers are at the next. Both ranks run this script on the same data, and get the same losses as one
process. scikit-learn's digits need no download.

Needs scikit-learn: `pip install --editable '.[tensorflow,examples]'` in the checkout.
"""

from __future__ import annotations

import argparse
import time

import keras
import numpy as np
from sklearn.datasets import load_digits

import ringar

CLASSES, LAYERS = 10, 4


def main() -> None:
    """Train the stack, then print losses, accuracy and times."""
    options = parse()
    ringar.init()
    keras.utils.set_random_seed(options.seed)
    grid = ringar.parallel.Grid(model=ringar.size())
    (x, y), (test_x, test_y) = sequences()
    stack = ringar.parallel.Wavefront(
        [ringar.layers.ScanGRU(options.units, return_sequences=i < LAYERS - 1)
         for i in range(LAYERS)], options.chunk or None,
    )  # fmt: skip
    model = keras.Sequential([keras.Input(x.shape[1:]), stack, keras.layers.Dense(CLASSES)])
    model.compile(
        ringar.DistributedOptimizer(keras.optimizers.Adam(options.learning_rate), grid=grid),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    if ringar.rank() == 0:
        print(stack.plan(x.shape[1], options.batch).describe())
    times = Times()
    history = model.fit(
        x, y, batch_size=options.batch, epochs=options.epochs, verbose=0,
        callbacks=[ringar.callbacks.Distributed(), times],
    )  # fmt: skip
    accuracy = model.evaluate(test_x, test_y, batch_size=options.batch, verbose=0)[1]
    if ringar.rank() == 0:
        for epoch, loss in enumerate(history.history["loss"]):
            print(f"epoch {epoch + 1}: loss {loss:.4f}, {times.seconds[epoch]:.2f} s")
        print(f"accuracy on {len(test_y)} digits that it has not seen: {accuracy:.3f}")
    ringar.shutdown()


def sequences() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return digits as sequences of pixels, (digits, 64, 1), with their classes; then the tests."""
    digits = load_digits()
    x = (digits.data[..., None] / 16).astype("float32")
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:1536], order[1536:]
    return (x[train], digits.target[train]), (x[test], digits.target[test])


class Times(keras.callbacks.Callback):
    """Keep the seconds of each epoch, from the end of its first step on."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Start the clock after the first step."""
        if batch == 0:
            self.begin = time.perf_counter()
        self.end = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Note the time of the epoch."""
        self.seconds.append(self.end - self.begin)


def parse() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--units", type=int, default=48, help="of each layer (default %(default)s)")
    add("--chunk", type=int, default=8, help="steps; 0: ringar's choice (default %(default)s)")
    add("--epochs", type=int, default=8, help="(default %(default)s)")
    add("--batch", type=int, default=64, help="digits of a step (default %(default)s)")
    add("--learning-rate", type=float, default=4e-3, help="(default %(default)s)")
    add("--seed", type=int, default=1, help="of weights and batches (default %(default)s)")
    options = parser.parse_args()
    if options.chunk < 0:
        parser.error("--chunk must be 0 or more")
    for name in ("units", "epochs", "batch"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return options


if __name__ == "__main__":
    main()
