"""The plan of a wavefront: chunks of steps, blocks of layers, and the choice between plans.

A stack of L recurrent layers over T steps is a grid of cells (l, t), each of which needs (l-1, t)
and (l, t-1). Cells on a diagonal are independent (Appleyard, Kocisky and Blunsom, "Optimizing
performance of recurrent neural networks on GPUs", 2016; Sharma and Casas, ICS 2020). P workers have
a block of layers each, and go through the steps in chunks of k, which lie on the diagonal like
single cells:

    worker 0, layers 0, 1    chunk 0   chunk 1   chunk 2   chunk 3
    worker 1, layers 2, 3              chunk 0   chunk 1   chunk 2   chunk 3

With equal blocks and free messages that takes T + (P-1) k steps of a block, where one worker takes
P T of them: S = P T / (T + (P-1) k) times as fast. Small chunks fill the diagonal sooner, but each
chunk costs its start (kernels and sums of gradients come from memory, an op is scheduled), and a
message. `choose` adds both to the model, and takes the chunk with the least time.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

#: A wavefront must be expected to take at most this part of the time of layer by layer.
_WORTHWHILE = 0.95

#: The batches for which a choice must hold where the batch is not known.
_BATCHES = (1, 32)


@dataclasses.dataclass(frozen=True)
class Line:
    """Hold a time that grows linearly: `start + slope * count`, in seconds."""

    start: float
    slope: float

    def __call__(self, count: float) -> float:
        """Return the seconds for a count."""
        return self.start + self.slope * count


@dataclasses.dataclass(frozen=True)
class LayerCost:
    """Hold the costs of one layer on one thread, forward and backward together.

    Attributes:
        start: the seconds of a chunk without its steps, by the batch.
        step: the seconds of a step, by the batch.
        setup: the seconds of the work done once for all chunks: packing, writing gradients.
    """

    start: Line
    step: Line
    setup: float = 0.0

    def __call__(self, steps: float, batch: float) -> float:
        """Return the seconds of a chunk."""
        return self.start(batch) + steps * self.step(batch)


@dataclasses.dataclass(frozen=True)
class Costs:
    """Hold the costs of a stack.

    Attributes:
        layers: the costs of its layers.
        units: the units of its layers, which a message has for each step and example.
        message: the seconds of a message, by the numbers in it.
    """

    layers: tuple[LayerCost, ...]
    units: tuple[int, ...]
    message: Line

    def layer_by_layer(self, steps: int, batch: float, threads: int) -> float:
        """Return the seconds of the whole stack, where threads share the examples."""
        share = batch / min(threads, batch)
        return sum(cost.setup + cost(steps, share) for cost in self.layers)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Hold the way in which a stack is evaluated.

    Attributes:
        steps: the number of steps, None if it is unknown.
        chunk: the number of steps of a chunk; 0 for layer by layer, where each rank has all layers.
        blocks: the layers of each rank, (first, last + 1); the last ranks may have none.
        threads: the threads that share the examples of one chunk.
        ahead: the number of chunks of a rank that may be under way at once.
    """

    steps: int | None
    chunk: int
    blocks: tuple[tuple[int, int], ...]
    threads: int
    ahead: int = 1

    @property
    def is_wavefront(self) -> bool:
        """Whether the stack is evaluated in chunks."""
        return self.chunk > 0

    @property
    def workers(self) -> int:
        """The number of ranks that have layers."""
        return sum(last > first for first, last in self.blocks)

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """The chunks: first step, last step + 1. The last one may be shorter."""
        steps, chunk = self.steps or 0, self.chunk
        return [(begin, min(begin + chunk, steps)) for begin in range(0, steps, chunk)]

    def describe(self) -> str:
        """Return the plan in a sentence."""
        if not self.is_wavefront:
            return "layer by layer"
        layers = ", ".join(
            f"{first} to {last - 1}" if last > first + 1 else str(first)
            for first, last in self.blocks
            if last > first
        )
        return f"{len(self.chunks)} chunks of {self.chunk} steps; layers by rank: {layers}"

    def owner(self, layer: int) -> int:
        """Return the index of the rank that has a layer."""
        return next(i for i, (first, last) in enumerate(self.blocks) if first <= layer < last)

    def seconds(self, costs: Costs, batch: float) -> float:
        """Return the expected seconds of a step of training.

        The first chunk goes through all blocks; then the slowest block takes one chunk after the
        other. Within a rank `ahead` chunks are under way, on threads of their own.
        """
        if not self.is_wavefront or self.steps is None:
            return costs.layer_by_layer(self.steps or 1, batch, self.threads)
        share = batch / min(self.threads, batch)
        count = math.ceil(self.steps / self.chunk)
        blocks = [
            [cost(self.chunk, share) for cost in costs.layers[first:last]]
            for first, last in self.blocks
            if last > first
        ]
        # Forward and backward: two messages for each chunk, and the outputs for all ranks.
        cuts = [2 * costs.message(batch * self.chunk * costs.units[last - 1])
                for _, last in self.blocks[: self.workers - 1]]  # fmt: skip
        longest = max(sum(cost.setup for cost in costs.layers[first:last])
                    for first, last in self.blocks)  # fmt: skip
        outputs = 0.0
        if len(self.blocks) > 1:
            outputs = costs.message(batch * self.steps * costs.units[-1])
        lanes = min(self.ahead, count)
        first = sum(map(sum, blocks)) + sum(cuts)
        slowest = max(sum(block) for block in blocks) + max(cuts, default=0.0)
        fill = (lanes - 1) * max(map(max, blocks)) if lanes > 1 else 0.0
        return longest + first + fill + (count - lanes) * slowest / lanes + outputs


def speedup(steps: int, chunk: int, workers: int) -> float:
    """Return the model S = P T / (T + (P-1) k), the speed over that of one worker.

    Args:
        steps: T, the number of steps.
        chunk: k, the steps of a chunk.
        workers: P, the number of workers with equal blocks.
    """
    return workers * steps / (steps + (workers - 1) * chunk)


def blocks_of(seconds: Sequence[float], ranks: int) -> tuple[tuple[int, int], ...]:
    """Return contiguous blocks of layers whose slowest is as fast as possible; the rest is empty.

    Args:
        seconds: the seconds of each layer.
        ranks: the number of blocks.
    """
    count = len(seconds)

    @functools.cache
    def best(first: int, parts: int) -> tuple[float, tuple[int, ...]]:
        """Return the slowest of `parts` blocks from layer `first` on, and where they end."""
        if parts == 1:
            return sum(seconds[first:]), (count,)
        options = []
        for end in range(first + 1, count - parts + 2):
            rest, ends = best(end, parts - 1)
            options.append((max(sum(seconds[first:end]), rest), (end, *ends)))
        return min(options)

    _, ends = best(0, min(ranks, count))
    ends = (*ends, *[count] * (ranks - len(ends)))
    return tuple(zip((0, *ends[:-1]), ends, strict=True))


def layer_by_layer(steps: int | None, layers: int, ranks: int, threads: int) -> Plan:
    """Return the plan in which every rank has all layers, and nothing is sent."""
    return Plan(steps, 0, ((0, layers),) * ranks, threads)


def in_chunks(costs: Costs, steps: int, chunk: int, ranks: int, threads: int) -> Plan:
    """Return the plan with a given chunk.

    One rank works on as many chunks at once as it has threads. Where there are several, all threads
    of a rank share the examples of a chunk: that sends it off sooner.
    """
    blocks = blocks_of([cost.step(_BATCHES[-1]) for cost in costs.layers], ranks)
    is_alone = ranks == 1
    ahead = min(threads, len(costs.layers)) if is_alone else 1
    return Plan(steps, min(chunk, steps), blocks, 1 if is_alone else threads, ahead)


def choose(costs: Costs, steps: int, batch: int | None, ranks: int, threads: int) -> Plan:
    """Return the plan that is expected to be fastest.

    Args:
        costs: the costs of the stack.
        steps: the number of steps.
        batch: the number of examples. If it is None, the plan must pay for small batches, too.
        ranks: the number of ranks.
        threads: the number of threads of a rank.
    """
    plain = layer_by_layer(steps, len(costs.layers), ranks, threads)
    batches = _BATCHES if batch is None else (max(1, batch),)
    limits = [_WORTHWHILE * plain.seconds(costs, b) for b in batches]
    best, least = plain, float(len(batches))
    # Chunks of all sizes that give different numbers of them.
    for chunk in sorted({math.ceil(steps / count) for count in range(1, steps + 1)}):
        plan = in_chunks(costs, steps, chunk, ranks, threads)
        times = [plan.seconds(costs, b) for b in batches]
        relative = sum(time / limit for time, limit in zip(times, limits, strict=True))
        pays = all(time < limit for time, limit in zip(times, limits, strict=True))
        if pays and relative < least:
            best, least = plan, relative
    return best
