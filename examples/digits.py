"""A small convolutional network on images of handwritten digits, on any number of ranks.

    ringarrun -np 2 python examples/digits.py
    ringarrun -np 4 python examples/digits.py --data cifar10 --epochs 10

The lines with `ringar` in `main` make it run on several ranks. The rest is plain Keras, and a stop
watch for the table at the end. The digits are scikit-learn's (1,797 images of 8 x 8); Keras
downloads the data of `--data mnist` and `--data cifar10`.

Needs scikit-learn: `pip install --editable '.[tensorflow,examples]'` in the checkout.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import keras
import numpy as np

import ringar

Images = tuple[np.ndarray, np.ndarray]


def main() -> None:
    """Train, then print speed and accuracy."""
    options = parse()
    ringar.init()
    keras.utils.set_random_seed(options.seed)
    train, test = load(options.data)

    # For the table only: rank 0 trains alone, with plain Keras, while the others wait.
    single, single_load = speed_of_one_rank(train, options)

    x, y = ringar.data.shard(train)
    model = make_model(x.shape[1:])
    optimizer = ringar.DistributedOptimizer(keras.optimizers.Adam(options.learning_rate))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    watch = StopWatch()
    callbacks = [ringar.callbacks.Distributed(), watch]
    model.fit(x, y, options.batch_size, options.epochs, callbacks=callbacks)

    if ringar.rank() == 0:
        _, accuracy = model.evaluate(*test, verbose=0)
        together = watch.images_per_second(len(x), options.batch_size) * ringar.size()
        print_table(together, single, accuracy)
        print_load(max(single_load, watch.load()))


def make_model(shape: tuple[int, ...]) -> keras.Model:
    """Return a model of two convolutions, a pooling and a dense layer, for 10 classes."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(128, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )


def load(name: str) -> tuple[Images, Images]:
    """Return train and test data: images, float32 [n, height, width, channels], and classes."""
    if name == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        x, y = digits.images[..., None] / 16, digits.target
        order = np.random.default_rng(0).permutation(len(x))
        x, y = x[order].astype("float32"), y[order]
        return (x[:1437], y[:1437]), (x[1437:], y[1437:])
    # One rank of a host downloads, and the others find the file.
    if ringar.local_rank() == 0:
        getattr(keras.datasets, name).load_data()
    ringar.barrier()
    (x, y), (x_test, y_test) = getattr(keras.datasets, name).load_data()

    def scale(images: np.ndarray) -> np.ndarray:
        images = images.astype("float32") / 255
        return images if images.ndim == 4 else images[..., None]

    return (scale(x), y.ravel()), (scale(x_test), y_test.ravel())


class StopWatch(keras.callbacks.Callback):
    """Time each epoch from its second step on: the first waits for data and for a trace."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.foreign: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Start the watch."""
        if batch == 1:
            self._start = time.perf_counter()
            self._foreign = foreign_seconds()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Stop the watch."""
        self.seconds.append(time.perf_counter() - self._start)
        self.foreign.append(foreign_seconds() - self._foreign)

    def images_per_second(self, images: int, batch_size: int) -> float:
        """Return the speed of this rank in the median epoch, which had `images`."""
        return (images - batch_size) / float(np.median(self.seconds))

    def load(self) -> float:
        """Return the part of this rank's cores that other programs have taken."""
        cores = len(os.sched_getaffinity(0))
        return sum(self.foreign) / sum(self.seconds) / cores


def foreign_seconds() -> float:
    """Return the seconds that this rank's cores have worked for other processes."""
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    # User, nice, system, idle, waiting, interrupts (two), and those of other virtual machines.
    ticks = sum(int(row[i]) for row in rows if row[0] in names for i in (1, 2, 3, 6, 7, 8))
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


def speed_of_one_rank(train: Images, options: argparse.Namespace) -> tuple[float, float]:
    """Return the speed and the load of rank 0 alone, with its threads and batch size in the job."""
    measured = (0.0, 0.0)
    if ringar.rank() == 0:
        images = min(len(train[0]) // ringar.size(), 64 * options.batch_size)
        x, y = (array[:images] for array in train)
        model = make_model(x.shape[1:])
        optimizer = keras.optimizers.Adam(options.learning_rate)
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
        watch = StopWatch()
        # With a progress bar, which costs time in the job, too.
        print("Rank 0 alone, to compare with:")
        model.fit(x, y, options.batch_size, epochs=4, callbacks=[watch])
        print("All ranks together:")
        measured = (watch.images_per_second(images, options.batch_size), watch.load())
    return ringar.broadcast_object(measured)


def print_table(together: float, single: float, accuracy: float) -> None:
    """Print the speed of one rank, of all and of the ideal, and the accuracy."""
    ranks = ringar.size()
    ideal = ranks * single
    rows = [
        ("rank 0 alone, plain Keras", single),
        (f"all ranks together: {ranks}", together),
        (f"ideal: {ranks} times rank 0 alone", ideal),
    ]
    print(f"\n| {'':34} | images/s | of ideal |")
    print(f"|{'-' * 36}|---------:|---------:|")
    for name, speed in rows:
        print(f"| {name:34} | {speed:8,.0f} | {speed / ideal:8.0%} |")
    print(f"\nAccuracy on images that no rank has trained with: {accuracy:.2%}")
    threads = ringar.threads.intra_op_threads() or "all"
    print(
        f"Alone and together, a rank has the same batch size, and threads for its layers: {threads}"
    )


def print_load(load: float) -> None:
    """Say so if other processes have taken the cores, for the speeds are then those of less."""
    if load > 0.1:
        print(
            f"Cores were busy: other processes took {load:.0%} of those of rank 0. The speeds are "
            "higher on a machine without other work, and where ranks share no cores."
        )


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["digits", "mnist", "cifar10"], default="digits")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
