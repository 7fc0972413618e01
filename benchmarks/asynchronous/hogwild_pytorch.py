"""Sparse logistic regression on a tensor in shared memory, by one and by two processes of PyTorch.

    python -m benchmarks.asynchronous.hogwild_pytorch OPTIONS

The same examples, in the same order, and the same updates as in `hogwild_worker`: `index_select`
reads the weights of an example, `index_add_` adds to them without a lock, both on a tensor of
`share_memory_`. Each process has one thread and, if there are enough, cores of its own.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from typing import Any

import torch

from benchmarks.asynchronous.hogwild_worker import RATE, Examples, loss_of, make_examples
from benchmarks.harness.worker import read_options, write_report

PROCESSES = {"PyTorch, one process": 1, "PyTorch, two processes": 2}


def bind(index: int, processes: int) -> None:
    """Binds this process to its share of the cores, as the launchers bind ranks."""
    cores = sorted(os.sched_getaffinity(0))
    if share := len(cores) // processes:
        os.sched_setaffinity(0, cores[index * share : (index + 1) * share])


def train(index: int, weights: Any, data: Examples, barrier: Any, times: Any) -> None:
    """Takes a step for each example of this process, and notes its begin and its end."""
    bind(index, barrier.parties)
    share = slice(index, None, barrier.parties)
    rows = torch.from_numpy(data.rows[share]).unbind()
    values = torch.from_numpy(data.values[share]).unbind()
    examples = list(zip(rows, values, data.labels[share].tolist(), strict=True))
    exp = math.exp
    with torch.no_grad():
        barrier.wait()
        start = time.perf_counter()
        for row, value, label in examples:
            margin = label * weights.index_select(0, row).dot(value).item()
            weights.index_add_(0, row, value, alpha=RATE * label / (1.0 + exp(margin)))
        times[index] = torch.tensor([start, time.perf_counter()], dtype=torch.float64)


def measure(data: Examples, features: int, processes: int) -> tuple[float, float]:
    """Returns the updates per second of all processes, and the loss.

    Raises:
        torch.multiprocessing.ProcessException: a process failed; the others were ended.
    """
    weights = torch.zeros(features).share_memory_()
    times = torch.zeros(processes, 2, dtype=torch.float64).share_memory_()
    barrier = multiprocessing.get_context("fork").Barrier(processes)
    # Forked, processes have the examples without a copy; perf_counter is one clock for all.
    torch.multiprocessing.start_processes(
        train, (weights, data, barrier, times), processes, start_method="fork"
    )
    took = float(times[:, 1].max() - times[:, 0].min())
    return len(data.labels) / took, loss_of(weights.numpy(), data)


def main() -> None:
    options = read_options()
    torch.set_num_threads(1)
    features = options["features"]
    data = make_examples(options["examples"], features, options["nonzeros"])
    rates: dict[str, float] = {}
    losses: dict[str, float] = {}
    for name, processes in PROCESSES.items():
        rates[name], losses[name] = measure(data, features, processes)
    write_report(options, 0, {"rates": rates, "losses": losses})


if __name__ == "__main__":
    main()
