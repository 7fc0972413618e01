"""Handwritten digits on ranks that come and go: kill any of them, and the others train on.

    ringarrun -np 4 --min-np 2 python examples/elastic_digits.py
    ringarrun -np 4 --min-np 2 python examples/elastic_digits.py --kill 3

The second command kills rank 1 in the fourth epoch. The lines with `ringar` in `main` make the
script run on several ranks, whose number may change; the model and the data are those of
examples/digits.py.
"""

from __future__ import annotations

import argparse
import os
import signal

import keras
from digits import load, make_model

import ringar


def main() -> None:
    """Train, then print the accuracy."""
    options = parse()
    ringar.init()
    keras.utils.set_random_seed(options.seed)
    train, test = load("digits")
    model = make_model(train[0].shape[1:])
    optimizer = ringar.DistributedOptimizer(keras.optimizers.Adam(2e-3))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])

    data = ringar.elastic.Dataset(train, batch_size=32, shuffle=True, seed=options.seed)
    callbacks = [ringar.callbacks.Distributed(), ringar.callbacks.Elastic(every=5)]
    if options.kill is not None:
        callbacks.append(Kill(options.kill))
    model.fit(data, epochs=options.epochs, callbacks=callbacks)

    if ringar.rank() == 0:
        _, accuracy = model.evaluate(*test, verbose=0)
        print(f"accuracy of {ringar.size()} ranks in the end: {accuracy:.2%}")


class Kill(keras.callbacks.Callback):
    """Kill rank 1 in the middle of an epoch, as a machine that is taken away would."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.at, self.epoch = epoch, -1
        self.ranks = ringar.size()

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Note the epoch."""
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Kill this process, if it is its turn, in the world that the job began with."""
        where = self.epoch, batch, ringar.rank(), ringar.size()
        if where == (self.at, 3, 1, self.ranks):
            os.kill(os.getpid(), signal.SIGKILL)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill", type=int, metavar="EPOCH", help="kill rank 1 in it, from 0")
    return parser.parse_args()


if __name__ == "__main__":
    main()
