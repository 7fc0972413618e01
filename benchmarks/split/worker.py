"""Trains AlexNet by one plan on one rank: `python -m benchmarks.split.worker OPTIONS`.

The first two steps of every plan begin with the same weights and the same images, without dropout:
their losses must be those of one process. Then steps are timed. Ranks that split the net all
compute for the whole batch; the others for their share of it.
"""

from __future__ import annotations

import numpy as np

from benchmarks.harness.worker import now_bytes, peak_bytes, read_options, train, write_report

CLASSES, SIDE = 1000, 227
CHECKED_STEPS = 2
SPLIT_EXAMPLES = ("hybrid", "whole")
"""Plans in which each rank has examples of its own."""


def batch(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns one global batch, the same in every process."""
    rng = np.random.default_rng(5)
    images = rng.normal(size=(size, SIDE, SIDE, 3)).astype(np.float32)
    return images, rng.integers(0, CLASSES, size)


def main() -> None:
    options = read_options()
    import keras
    import tensorflow as tf

    import ringar
    from examples import alexnet

    ringar.init(deadline=240)
    before = now_bytes()
    plan, ranks = options["plan"], ringar.size()
    keras.utils.set_random_seed(1)
    grid = None if plan == "whole" else ringar.parallel.Grid(model=ranks)
    model = alexnet.alexnet(
        CLASSES, (SIDE, SIDE, 3), plan, grid=grid, dropout=0.0, groups=options.get("groups"),
        normalization_groups=options.get("normalization_groups"),
    )  # fmt: skip
    images, labels = batch(options["batch"])
    if plan in SPLIT_EXAMPLES:
        images, labels = images[ringar.rank() :: ranks], labels[ringar.rank() :: ranks]
    # Without gradients' noise, the first steps tell most: a small rate keeps them comparable.
    optimizer = ringar.DistributedOptimizer(keras.optimizers.SGD(1e-3, momentum=0.9), grid=grid)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    dataset = tf.data.Dataset.from_tensors((images, labels)).repeat()
    losses, rounds = train(model, dataset, CHECKED_STEPS, options)
    traffic = ringar.stats(by="layer")
    steps = options["rounds"] * options["steps"]
    result = {
        "losses": losses,
        "rounds": rounds,
        "parameters": int(model.count_params()),
        "slots": int(sum(np.prod(v.shape) for v in optimizer.variables if len(v.shape))),
        "memory": peak_bytes() - before,
        "bytes": {name: entry.bytes / steps for name, entry in traffic.items() if entry.bytes},
    }
    write_report(options, ringar.rank(), result)
    ringar.shutdown()


if __name__ == "__main__":
    main()
