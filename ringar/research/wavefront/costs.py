"""The costs for the choice of a chunk, measured: the start and the steps of a chunk, and a message.

Each kind of layer runs one chunk and several, forward and backward, on one thread, as a wavefront
runs them: kernels packed once, sums of gradients handed on. Chunks of two lengths and two batches
tell the start of a chunk, its time per step, and the setup for all chunks. The first two ranks of a
model group exchange messages of two sizes. All ranks then take the greatest of their times, so that
they choose alike: a job is as fast as its slowest rank.

With RINGAR_CALIBRATION=off nothing is measured, and `nominal` stands for any machine.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from ringar.collectives import allgather_object, recv, send
from ringar.job import calibration
from ringar.parallel.scan import chunks, recurrent
from ringar.parallel.scan.chain import Options
from ringar.research.wavefront.plan import Costs, LayerCost, Line
from ringar.sharding.grid import Grid

_SHORT, _LONG = 1, 17  # steps of a chunk
_CHUNKS = 4
_BATCHES = (1, 16)
_NUMBERS = (1 << 8, 1 << 16)
_REPEATS = 8

#: For a machine that was not measured: seconds of a chunk or message; operations, bytes per second.
_START, _FLOPS, _BYTES = 1e-4, 2e10, 2e9


@dataclasses.dataclass(frozen=True)
class Shape:
    """Describe a layer as far as it matters for its costs."""

    cell: recurrent.Cell
    features: int
    units: int

    @property
    def weights(self) -> int:
        """The number of weights in both kernels."""
        return (self.features + self.units) * self.cell.gates * self.units


def of_stack(shapes: Sequence[Shape], grid: Grid | None) -> Costs:
    """Return the costs of a stack. Collective over all ranks if there is a grid.

    Args:
        shapes: the layers.
        grid: the grid of the stack; None in one process.
    """
    if are_nominal():
        return nominal(shapes)
    with tf.init_scope():
        layers = {shape: _layer(shape) for shape in dict.fromkeys(shapes)}
        message = Line(0.0, 0.0) if grid is None else _message(grid)
    costs = [layers[shape] for shape in shapes]
    if grid is not None:
        everyone = allgather_object((costs, message), name="wavefront/costs")
        costs = [
            LayerCost(
                _slowest([cost.start for cost in of_ranks]),
                _slowest([cost.step for cost in of_ranks]),
                max(cost.setup for cost in of_ranks),
            )
            for of_ranks in zip(*(ranks for ranks, _ in everyone), strict=True)
        ]
        message = _slowest([line for _, line in everyone])
    return Costs(tuple(costs), tuple(shape.units for shape in shapes), message)


def are_nominal() -> bool:
    """Return whether nothing is measured."""
    return os.environ.get(calibration.VARIABLE) == "off"


def nominal(shapes: Sequence[Shape]) -> Costs:
    """Return costs that follow from the sizes alone, the same on every machine."""
    layers = tuple(
        # All weights are packed twice, and their gradients written; a chunk finds both kernels and
        # the sums, which it also writes, in no near cache. Backward is twice forward.
        LayerCost(Line(_START + 16 * shape.weights / _BYTES, 0.0),
                  Line(1e-6, 6 * shape.weights / _FLOPS),
                  24 * shape.weights / _BYTES)
        for shape in shapes
    )  # fmt: skip
    return Costs(layers, tuple(shape.units for shape in shapes), Line(_START, 4 / _BYTES))


def _layer(shape: Shape) -> LayerCost:
    starts, steps, setups = [], [], []
    for batch in _BATCHES:
        one_chunk = _chunks(shape, batch, _SHORT, 1)
        short_run, long_run = (_chunks(shape, batch, count, _CHUNKS) for count in (_SHORT, _LONG))
        chunk = max((short_run - one_chunk) / (_CHUNKS - 1), short_run / (2 * _CHUNKS))
        # A disturbed measurement may make a difference far too small, and chunks or steps would
        # seem to be free. So each counts as at least a part of the total.
        step = max((long_run - short_run) / (_LONG - _SHORT), long_run / (4 * _LONG)) / _CHUNKS
        steps.append(step)
        starts.append(max(chunk - _SHORT * step, 0.0))
        setups.append(max(one_chunk - chunk, 0.0))
    return LayerCost(_line(_BATCHES, starts), _line(_BATCHES, steps), min(setups))


def _chunks(shape: Shape, batch: int, steps: int, count: int) -> float:
    """Return the seconds of so many chunks, forward and backward."""
    columns = shape.cell.gates * shape.units
    sequence = recurrent.Sequence(
        shape.cell,
        tf.random.normal([batch, steps, shape.features]),
        tf.zeros([batch, shape.cell.vectors * shape.units]),
        tf.random.normal([shape.features, columns], stddev=0.05),
        tf.random.normal([shape.units, columns], stddev=0.05),
    )
    upstream = tf.ones([batch, steps, shape.units])

    def run() -> list[tf.Tensor]:
        calls, packed = [sequence], chunks.pack(sequence, back=False)
        saved = [recurrent.forward(sequence, 1, packed)]
        for _ in range(count - 1):
            state = recurrent.final_state(shape.cell, saved[-1])
            calls.append(dataclasses.replace(sequence, initial=state))
            saved.append(recurrent.forward(calls[-1], 1, packed))
        packed, sums, d_last = chunks.pack(sequence, back=True), None, None
        left = []
        for call, saved_values in zip(reversed(calls), reversed(saved), strict=True):
            d_x, d_last, sums = chunks.backward(
                call, saved_values, upstream, d_last, packed, sums, Options(0, 1)
            )
            left.append(d_x)
        return [*left, *chunks.weight_gradients(sequence, sums)]

    return _shortest(tf.function(run, autograph=False))


def _message(grid: Grid) -> Line:
    """Return the seconds of a message, half of the way there and back; 0 on the other ranks."""
    ranks = grid.model_set
    if grid.part > 1:
        return Line(0.0, 0.0)
    peer = 1 - grid.part
    seconds = []
    for numbers in _NUMBERS:
        tensor = tf.zeros([numbers])
        spec = tf.TensorSpec([numbers], tf.float32)

        def there_and_back(tensor: tf.Tensor = tensor, spec: tf.TensorSpec = spec) -> None:
            if grid.part == 0:
                send(tensor, peer, name="wavefront/cost", process_set=ranks)
            recv(spec, peer, name="wavefront/cost", process_set=ranks)
            if grid.part == 1:
                send(tensor, peer, name="wavefront/cost", process_set=ranks)

        seconds.append(_shortest(there_and_back) / 2)
    return _line(_NUMBERS, seconds)


def _shortest(function: Callable[[], object]) -> float:
    times = []
    for _ in range(1 + _REPEATS):  # the first call is slower
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def _line(counts: tuple[int, int], seconds: Sequence[float]) -> Line:
    """Return the line through two points; never one that falls."""
    slope = max(seconds[1] - seconds[0], 0.0) / (counts[1] - counts[0])
    return Line(max(seconds[0] - slope * counts[0], 0.0), slope)


def _slowest(lines: Sequence[Line]) -> Line:
    return Line(max(line.start for line in lines), max(line.slope for line in lines))
