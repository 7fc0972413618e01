"""Trains a sparse net by one plan on one rank: `python -m benchmarks.sparse.worker OPTIONS`.

The first steps of every plan begin with the same weights and the same examples: their losses must
be those of one process. Then steps are timed. Ranks read the placement of the neurons from a file,
since partitioning is no part of a step.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.worker import now_bytes, peak_bytes, read_options, train, write_report
from benchmarks.sparse import nets

CHECKED_STEPS = 3


def read_partition(path: str) -> Any:
    """Returns the placement that a file has."""
    from ringar.parallel import sparse

    with np.load(path) as arrays:
        owners = [arrays[f"owners_{number}"] for number in range(len(arrays) - 1)]
        return sparse.Partition(tuple(owners), int(arrays["parts"]))


def write_partition(path: Path, partition: Any) -> None:
    """Writes a placement."""
    owners = {f"owners_{number}": owner for number, owner in enumerate(partition.owners)}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, parts=partition.parts, **owners)


def main() -> None:
    options = read_options()
    if options["ranks"] == 1:
        cores = sorted(os.sched_getaffinity(0))[: options["threads"]]
        os.sched_setaffinity(0, cores)  # first of all, since threads inherit it
    import keras
    import tensorflow as tf

    import ringar
    from ringar.parallel import Grid, SparseNet

    ringar.init(intra_op_threads=options["threads"], deadline=240)
    before = now_bytes()
    grid = Grid(model=ringar.size())
    layers = nets.make_net(*options["net"])
    partition = read_partition(options["partition"]) if options["partition"] else "block"
    net = SparseNet(layers, grid=grid, partition=partition, kernel=options["kernel"])
    del layers
    optimizer = keras.optimizers.SGD(options["learning_rate"], momentum=0.9)
    net.compile(ringar.DistributedOptimizer(optimizer, grid=grid), "mse")
    rng = np.random.default_rng(5)
    shape = (options["batch"], options["net"][1])
    x, y = (rng.standard_normal(shape, np.float32) for _ in range(2))
    dataset = tf.data.Dataset.from_tensors((x, y)).repeat()
    losses, rounds = train(net, dataset, CHECKED_STEPS, options)
    steps = options["rounds"] * options["steps"]
    traffic = ringar.stats().items()
    volumes = {
        kind: sum(entry.bytes for name, entry in traffic if name.endswith(f"/{kind}")) / steps
        for kind in ("states", "gradients", "outputs")
    }
    result = {
        "losses": losses,
        "rounds": rounds,
        "words": sum(net.words),
        "sent": volumes,
        "memory": peak_bytes() - before,
        "nonzeros": int(sum(rows.values.shape[0] for rows in net.rows)),
    }
    write_report(options, ringar.rank(), result)
    ringar.shutdown()


if __name__ == "__main__":
    main()
