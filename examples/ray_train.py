"""Handwritten digits on a cluster of Ray, whose machines may come and go.

    python examples/ray_train.py
    python examples/ray_train.py --address auto --min-workers 2 --max-workers 8
    python examples/ray_train.py --lose

Without `--address` a small Ray is started here. The last command kills the actor of a rank, and
with it the rank: the others go on from the last commit, Ray starts the actor again, and its rank
joins.

Ray Train's own trainers start workers for TensorFlow's MultiWorkerMirroredStrategy, which Keras 3
leaves to you to fit. `RayExecutor` takes the trainer's place: its actors hold CPUs and GPUs as
Ray Train's workers do, and its ranks are ringar's. In a trial of Ray Tune it takes the bundles of
the trial's placement group, whose first one is the trial's own:
`RayExecutor(n, placement_group=ray.util.get_current_placement_group())` with `n` others.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import ray

import ringar


def train(epochs: int, victim: str) -> tuple[int, int, float]:
    """Train on this rank; return its number, how many ranks there are, and the accuracy."""
    import keras
    from digits import load, make_model

    ringar.init()
    keras.utils.set_random_seed(1)
    data, test = load("digits")
    model = make_model(data[0].shape[1:])
    optimizer = ringar.DistributedOptimizer(keras.optimizers.Adam(2e-3))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])

    class Lose(keras.callbacks.Callback):
        """Kill the actor of rank 1 once, as a machine that is taken away would."""

        def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            if victim and (epoch, ringar.rank()) == (2, 1) and not Path(victim).exists():
                Path(victim).touch()
                os.kill(actor(), signal.SIGKILL)

    model.fit(
        ringar.elastic.Dataset(data, batch_size=32, shuffle=True, seed=1),
        epochs=epochs,
        callbacks=[ringar.callbacks.Distributed(), ringar.callbacks.Elastic(every=5), Lose()],
        verbose=0,
    )
    _, accuracy = model.evaluate(*test, verbose=0)
    return ringar.rank(), ringar.size(), accuracy


def actor() -> int:
    """Return the process of the actor below which this rank runs."""
    pid = os.getppid()
    while "ray::" not in Path(f"/proc/{pid}/cmdline").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def main() -> None:
    """Train on the cluster, then print the accuracy."""
    options = parse()
    settings = {} if options.address else {"num_cpus": 2, "include_dashboard": False}
    context = ray.init(options.address, logging_level="ERROR", **settings)
    victim = str(Path(context["session_dir"], "ringar-lost")) if options.lose else ""
    with ringar.ray.RayExecutor(
        min_workers=options.min_workers, max_workers=options.max_workers
    ) as executor:
        for rank, size, accuracy in executor.run(train, [options.epochs, victim]):
            print(f"rank {rank} of {size} in the end: accuracy {accuracy:.2%}")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", help="of a cluster, as in ray.init; default: a Ray here")
    parser.add_argument("--min-workers", type=int, default=1)
    parser.add_argument("--max-workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lose", action="store_true", help="kill the actor of rank 1 once")
    return parser.parse_args()


if __name__ == "__main__":
    main()
