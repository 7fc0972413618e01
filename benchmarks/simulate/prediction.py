"""How long a training step takes on many ranks, from the cost model and the model's layers.

One step of one rank, all ranks being alike:

- The forward pass takes a third of the computing time, the backward pass two thirds: it multiplies
  twice as much. Within the pass each layer takes its share of the multiply-adds, last layer first.
- Gradients are dealt into buckets by ringar's own plan (`ringar.keras.buckets.plan`), of the size
  that ringar takes for so many hosts and such a network (`ringar.cost_model.bucket_bytes`).
- A bucket leaves when its last gradient is there and the bucket before it is back, and takes the
  time of an allreduce of its bytes by the cost model (`ringar.cost_model`), which has the handshake
  that begins each of them.
- While a bucket is on its way, computing goes on at (1 - contention) of its speed: adding and
  copying need the same processor, or cores of the same GPU.
- The step ends when the backward pass and the last bucket have ended.

Without overlap, all gradients leave in their buckets after the backward pass. Efficiency is the
computing time over the step's: images/s of N ranks over N times those of one.

What the model leaves out: ranks that are slower than others, the optimizer's update (it is part of
the computing time that goes in), reading the data, and the network beyond the hosts' own links,
which is taken to pass what all hosts send at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from benchmarks.simulate.networks import Layer
from ringar import cost_model
from ringar.job.cost_model import Parameters
from ringar.keras.buckets import (
    DEFAULT_BUCKET_BYTES,
    DEFAULT_FIRST_BUCKET_BYTES,
    Spec,
    plan,
)

FORWARD = 1 / 3
"""Of the computing time; the backward pass has the rest."""

ITEM_BYTES = 4
"""Of a gradient: float32."""


@dataclass(frozen=True)
class Workload:
    """The training step of every rank.

    Attributes:
        layers: in the order of the forward pass.
        seconds: computing time of a step on one rank.
        bucket: a bucket is closed before it would exceed this many bytes; None: ringar's choice.
        first_bucket: the same for the first bucket.
        overlap: whether buckets leave during the backward pass.
        contention: which part of its speed computing loses while a bucket is on its way.
    """

    layers: Sequence[Layer]
    seconds: float
    bucket: int | None = None
    first_bucket: int = DEFAULT_FIRST_BUCKET_BYTES
    overlap: bool = True
    contention: float = 0.0

    @property
    def gradient_bytes(self) -> int:
        """The gradients of all layers."""
        return ITEM_BYTES * sum(layer.parameters for layer in self.layers)

    @cached_property
    def ready(self) -> list[tuple[float, int]]:
        """For each bucket in order: when the backward pass alone completes it, and its bytes.

        Times are seconds of backward computing.
        """
        backward = self.seconds * (1 - FORWARD)
        work = sum(layer.work for layer in self.layers)
        after = []  # for each layer: the work of it and of all that the pass does before it
        done = 0
        for layer in reversed(self.layers):
            done += layer.work
            after.append(done)
        after.reverse()
        specs = [Spec((layer.parameters,), "float32") for layer in self.layers]
        return [
            (backward * after[min(bucket.indices)] / work if self.overlap else backward,
             bucket.bytes)
            for bucket in plan(specs, self.bucket or DEFAULT_BUCKET_BYTES, self.first_bucket)
        ]  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A predicted step, in seconds.

    Attributes:
        compute: of one rank alone.
        communicate: of all allreduces together.
        total: of the step.
    """

    compute: float
    communicate: float
    total: float

    @property
    def efficiency(self) -> float:
        """The efficiency against ranks that do not communicate."""
        return self.compute / self.total


def step(workload: Workload, allreduce: Callable[[float], float]) -> Step:
    """Walks through one step; `allreduce` gives the seconds of so many bytes."""
    backward = workload.seconds * (1 - FORWARD)
    clock, computed, communicated = 0.0, 0.0, 0.0  # from the begin of the backward pass
    for ready, nbytes in workload.ready:
        if computed < ready:  # the link waits for the gradient
            clock += ready - computed
            computed = ready
        seconds = allreduce(nbytes)
        clock += seconds
        communicated += seconds
        computed = min(backward, computed + seconds * (1 - workload.contention))
    clock += backward - computed
    return Step(workload.seconds, communicated, workload.seconds * FORWARD + clock)


def predict(
    workload: Workload,
    parameters: Parameters,
    ranks: int,
    ranks_per_host: int,
    algorithm: str = "auto",
) -> Step:
    """Predicts a step on `ranks` ranks, with full hosts.

    Raises:
        ValueError: if the ranks do not fill their hosts.
    """
    local = min(ranks, ranks_per_host)
    if ranks % local:
        raise ValueError(
            f"expected a multiple of {ranks_per_host} ranks per host, or fewer, received {ranks}"
        )
    if ranks == 1:
        return Step(workload.seconds, 0.0, workload.seconds)
    if workload.bucket is None:
        network = cost_model.Network(parameters, ranks // local, local)
        workload = replace(workload, bucket=cost_model.bucket_bytes(network))
    return step(
        workload,
        lambda nbytes: cost_model.allreduce_seconds(
            parameters, nbytes, ranks // local, local, algorithm
        ),
    )
