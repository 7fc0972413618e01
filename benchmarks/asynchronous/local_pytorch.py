"""The ways of `local_worker` by PyTorch, for `benchmarks.asynchronous`.

    python -m benchmarks.asynchronous.local_pytorch OPTIONS

Gradients are exchanged by DistributedDataParallel, local steps taken by PostLocalSGDOptimizer, both
through Gloo. Statistics of batch normalization stay on their rank, as in ringar. The bytes, headers
included, are those that the interface of the host has counted.
"""

from __future__ import annotations

import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer

from benchmarks.asynchronous.local_worker import LEARNING_RATE
from benchmarks.harness.worker import read_options, write_report
from benchmarks.training.models import MODELS

INTERFACE = "eth0"
"""Of a host of `tests.hosts`."""


def convolution(before: int, filters: int, stride: int = 1) -> Any:
    """Builds a convolution of 3x3 with its batch normalization."""
    layer = nn.Conv2d(before, filters, 3, stride, padding=1, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(filters))


class Block(nn.Module):
    """Two convolutions and their shortcut."""

    def __init__(self, before: int, filters: int) -> None:
        super().__init__()
        stride = filters // before
        first = convolution(before, filters, stride)
        self.inner = nn.Sequential(first, nn.ReLU(), convolution(filters, filters))
        self.shortcut: Any = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Conv2d(before, filters, 1, stride, bias=False)

    def forward(self, value: Any) -> Any:
        return torch.relu(self.inner(value) + self.shortcut(value))


def resnet20() -> Any:
    """Builds `resnet20` of `benchmarks.training.models`, with the same weights on all ranks."""
    torch.manual_seed(1)
    blocks = [Block(*sizes) for sizes in pairwise([16] * 4 + [32] * 3 + [64] * 3)]
    ends = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return nn.Sequential(convolution(3, 16), nn.ReLU(), *blocks, *ends)


class Way:
    """A model with its optimizer and the data of this rank."""

    def __init__(self, model: Any, optimizer: Any, batch: int) -> None:
        self.model, self._optimizer = model, optimizer
        random = torch.Generator().manual_seed(dist.get_rank())
        self._inputs = torch.randn(batch, 3, 32, 32, generator=random)
        self._targets = torch.randn(batch, 10, generator=random)
        self.run()  # allocates; PostLocalSGDOptimizer averages here, too: its first step

    def run(self) -> None:
        """Takes a step."""
        self._optimizer.zero_grad()
        nn.functional.mse_loss(self.model(self._inputs), self._targets).backward()
        self._optimizer.step()

    def measure(self, steps: int) -> tuple[float, float]:
        """Returns the seconds of a step until all ranks have ended, and the bytes sent for it."""
        dist.barrier()
        bytes_before, start = sent_bytes(), time.perf_counter()
        for _ in range(steps):
            self.run()
        dist.barrier()
        took = time.perf_counter() - start
        return took / steps, (sent_bytes() - bytes_before) / steps


def sent_bytes() -> int:
    """Returns what this host has sent to the others."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return sum(int(line.split()[9]) for line in lines if line.strip().startswith(f"{INTERFACE}:"))


def make_ways(batch: int, period: int) -> dict[str, Way]:
    """Makes the ways, each with a model of its own."""

    def sgd(model: Any) -> Any:
        return torch.optim.SGD(model.parameters(), LEARNING_RATE)

    replica, local = resnet20(), resnet20()
    parallel = nn.parallel.DistributedDataParallel(resnet20(), broadcast_buffers=False)
    averaging = PostLocalSGDOptimizer(sgd(local), PeriodicModelAverager(period))
    return {
        "PyTorch, no exchange": Way(replica, sgd(replica), batch),
        "PyTorch, gradients": Way(parallel, sgd(parallel), batch),
        "PyTorch, local steps": Way(local, averaging, batch),
    }


def weights_differ(model: Any) -> int:
    """Counts the parameters whose bits are not the same on all ranks."""
    flat = torch.cat([parameter.detach().ravel() for parameter in model.parameters()])
    everyone = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, flat)
    bits = flat.view(torch.int32)
    return sum(int(torch.count_nonzero(weights.view(torch.int32) != bits)) for weights in everyone)


def main() -> None:
    options = read_options()
    if options["model"] != "resnet20":
        raise ValueError(f"model must be resnet20 for PyTorch. Received: {options['model']}")
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    rank, size = int(os.environ["RINGAR_RANK"]), int(os.environ["RINGAR_SIZE"])
    meeting = f"file://{options['folder']}/pytorch"  # hosts share their files
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    _, batch = MODELS[options["model"]]
    ways = make_ways(batch, options["period"])
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(options["rounds"]):
        for name, way in ways.items():
            turns[name].append(way.measure(options["period"]))
    errors = sum(
        weights_differ(way.model) for name, way in ways.items() if name != "PyTorch, no exchange"
    )
    write_report(options, rank, {"found": turns, "wrong": errors})
    # Else Gloo's threads are still there when Python ends, which often aborts the process.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
