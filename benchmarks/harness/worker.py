"""Common parts of workers: the programs that a benchmark runs on every rank of a job.

`benchmarks.harness.jobs.run_worker` starts one with its options as JSON on the command line. It
leaves its report as JSON in the folder that the options name. TensorFlow and ringar are imported
where they are used: workers of other peers run without them.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def read_options() -> dict[str, Any]:
    """Returns the options of this worker."""
    options: dict[str, Any] = json.loads(sys.argv[1])
    return options


def write_report(options: dict[str, Any], rank: int, report: dict[str, Any]) -> None:
    """Leaves the report of a rank to the benchmark."""
    Path(options["folder"], f"{rank}.json").write_text(json.dumps(report))


def start(options: dict[str, Any], deadline: float) -> int:
    """Starts ringar, or TensorFlow alone where there is one rank, and returns the rank.

    Every rank has `options["threads"]` threads. One that is alone is bound to `options["cores"]`.
    """
    if options["ranks"] > 1:
        import ringar

        ringar.init(intra_op_threads=options["threads"], deadline=deadline)
        return int(ringar.rank())
    os.sched_setaffinity(0, options["cores"])  # first of all, since threads inherit it
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(options["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(options["threads"])
    return 0


def train(
    model: Any, dataset: Any, checked_steps: int, options: dict[str, Any]
) -> tuple[list[float], list[list[float]]]:
    """Trains a compiled model on all ranks.

    Takes `checked_steps` steps for their losses, one to warm up, and then the timed ones:
    `options["steps"]` in each of `options["rounds"]`. `ringar.stats` counts the timed steps only.

    Returns:
        The losses of the checked steps, and the seconds of the timed steps by round.
    """
    import ringar

    history = model.fit(
        dataset, epochs=checked_steps, steps_per_epoch=1, verbose=0,
        callbacks=[ringar.callbacks.Distributed()],
    )  # fmt: skip
    step, data = model.train_function, iter(dataset)
    step(data)
    ringar.reset_stats()
    rounds = []
    for _ in range(options["rounds"]):
        times = []
        for _ in range(options["steps"]):
            ringar.barrier()
            begin = time.perf_counter()
            step(data)
            ringar.barrier()
            times.append(time.perf_counter() - begin)
        rounds.append(times)
    return history.history["loss"], rounds


def weights_differ(model: Any) -> int:
    """Counts the weights whose bits are not the same on all ranks."""
    import ringar

    flat = np.concatenate([np.asarray(w).ravel() for w in model.get_weights()])
    everyone = ringar.allgather(flat[np.newaxis])
    return int(np.count_nonzero(everyone.view(np.uint32) != everyone[0].view(np.uint32)))


def peak_bytes() -> int:
    """Returns the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def now_bytes() -> int:
    """Returns the memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
