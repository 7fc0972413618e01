"""Runs and times a recurrent layer on one rank: `python -m benchmarks.scan.worker OPTIONS`.

For each cell every way to run the paper's network (examples/bits.py), or the same with an LSTM in
the place of its RNN, begins with the same weights
and the same bits; loss and gradients must be those of Keras' `tf.function`. Then all are timed in
turn, some rounds: a call of the forward pass and a call of the whole step one after the other, as
often as fits into the time of a turn. The backward pass is the difference of such a pair. Figures
are medians. On several ranks each has its part of the batch, or its shard of the sequences, and the
gradients are averaged.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness.worker import read_options, start, write_report
from benchmarks.scan.cells import Cell

TOLERANCE = 1e-4
"""Relative, of the norm of each gradient and of the loss: float32, summed in another order."""
MOST_CALLS, MOST_JACOBIAN_BYTES = 200, 1_500_000_000
HYBRID_LEVELS = 3

Options = dict[str, Any]
Report = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """One way to run the recurrent layer: Keras', or ringar's with one of its backward passes."""

    title: str
    backward: str | int | None = None
    jit: bool = False
    over: bool = False
    """Each rank has a shard of all sequences, not a part of the sequences."""


WAYS = {
    "keras": Way("Keras"),
    "keras_jit": Way("Keras, jit", jit=True),
    "auto": Way("auto", "auto"),
    "auto_jit": Way("auto, jit", "auto", jit=True),
    "serial": Way("serial", "serial"),
    "scan": Way("scan", "scan"),
    "hybrid": Way("hybrid", HYBRID_LEVELS),
    "over": Way("cut over ranks", "auto", over=True),
}
LAYERS = ("SimpleRNN", "LSTM")
OWN = tuple(name for name, way in WAYS.items() if way.backward is not None)
REFERENCE = "keras"


def ways(ranks: int, layer: str = LAYERS[0]) -> dict[str, Way]:
    """Returns the ways that exist with so many ranks. An LSTM has no scan, only a serial kernel."""
    if layer == "LSTM":
        return {name: way for name, way in WAYS.items() if way.backward in (None, "auto")
                and not way.over}  # fmt: skip
    return {name: way for name, way in WAYS.items() if not way.over or ranks > 1}


@dataclass
class Case:
    """A way, ready to be called; each of the two returns tensors."""

    forward: Callable[[], list[Any]]
    step: Callable[[], list[Any]]
    layer: Any


class Job:
    """The data and weights of a cell, of the part that belongs to this rank."""

    def __init__(self, cell: Cell, options: Options) -> None:
        import keras
        import tensorflow as tf

        from examples import bits

        self.kind = options["layer"]
        self.threads, self.ranks, self.rank = options["threads"], options["ranks"], options["rank"]
        keras.utils.set_random_seed(1)
        self.cell, part = cell, cell.batch // self.ranks
        x, y = bits.bits(cell.batch, cell.steps, seed=7)
        share = slice(self.rank * part, (self.rank + 1) * part)
        self.x, self.y = tf.constant(x[share]), tf.constant(y[share])
        begin, end = (place * cell.steps // self.ranks for place in (self.rank, self.rank + 1))
        self.shard, self.all_y = tf.constant(x[:, begin:end]), tf.constant(y)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        first = getattr(keras.layers, self.kind)(cell.units)
        self.dense = keras.layers.Dense(bits.CLASSES)
        first.build(x.shape)
        self.dense.build((part, cell.units))
        self.weights = first.get_weights()

    def layer(self, way: Way, **options: Any) -> Any:
        """Returns the layer of a way, with the weights that all ways have."""
        import keras

        import ringar

        if way.backward is None:
            layer = getattr(keras.layers, self.kind)(self.cell.units, **options)
        else:
            if way.over:
                options["process_set"] = ringar.global_process_set
            layer = getattr(ringar.layers, f"Scan{self.kind}")(
                self.cell.units, backward=way.backward, threads=self.threads, **options
            )
        layer.build(self.x.shape)
        layer.set_weights(self.weights)
        return layer

    def case(self, way: Way) -> Case:
        """Returns two functions of TensorFlow, whose calls cost the same."""
        import tensorflow as tf

        import ringar

        layer = self.layer(way)
        x, y = (self.shard, self.all_y) if way.over else (self.x, self.y)
        variables = [v.value for v in layer.trainable_variables + self.dense.trainable_variables]

        @tf.function(jit_compile=way.jit, autograph=False)
        def forward(x: Any) -> Any:
            return [layer(x)]

        @tf.function(jit_compile=way.jit, autograph=False)
        def step(x: Any, y: Any) -> Any:
            tape = tf.GradientTape()
            with ringar.DistributedGradientTape(tape) if self.ranks > 1 else tape as tape:
                loss = self.loss(y, self.dense(layer(x)))
            return [loss, *tape.gradient(loss, variables)]

        return Case(lambda: forward(x), lambda: step(x, y), layer)

    def jacobians(self, case: Case) -> Callable[[], list[Any]] | None:
        """Returns a function that makes all Jacobians, or None if they are too large."""
        import tensorflow as tf

        from ringar.parallel.scan import recurrent

        if self.cell.jacobian_bytes // self.ranks > MOST_JACOBIAN_BYTES:
            return None
        initial = tf.zeros([self.x.shape[0], self.cell.units])
        sequence = case.layer._sequence(self.x, [initial], None, False)
        saved = recurrent.forward(sequence, self.threads)

        @tf.function(autograph=False)
        def make() -> Any:
            return [recurrent.jacobians(sequence, saved, self.threads)]

        return make

    def wait_for_others(self) -> None:
        """Lets the ranks begin a call together."""
        if self.ranks > 1:
            import ringar

            ringar.barrier()

    def same_on_all(self, value: Any) -> Any:
        """Returns the value of rank 0."""
        if self.ranks == 1:
            return value
        import ringar

        return ringar.broadcast_object(value)

    def results(self, case: Case) -> list[np.ndarray]:
        """Returns the loss of the whole batch and its gradients; traces and compiles."""
        case.forward()
        loss, *gradients = case.step()
        if self.ranks > 1:
            import ringar

            loss = ringar.allreduce(loss)
        return [np.asarray(result, np.float64) for result in (loss, *gradients)]

    def every_step(self, way: Way) -> list[np.ndarray]:
        """Returns gradients of inputs and weights for a loss of all states of this rank.

        The gradient of a loss of the last state alone vanishes after some hundred steps.
        """
        import tensorflow as tf

        layer = self.layer(way, return_sequences=True)
        variables = [variable.value for variable in layer.trainable_variables]
        size = (*self.x.shape[:2], self.cell.units)
        factors = tf.constant(np.random.default_rng(11).normal(size=size), tf.float32)

        @tf.function(jit_compile=way.jit, autograph=False)
        def derivatives(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(layer(x) * factors)
            return tape.gradient(loss, [x, *variables])

        return [np.asarray(tensor, np.float64) for tensor in derivatives(self.x)]

    def seconds(self, function: Callable[[], list[Any]]) -> float:
        """Returns the seconds of one call, until its result is there."""
        self.wait_for_others()
        start = time.perf_counter()
        function()[0].numpy()
        return time.perf_counter() - start

    def turn(self, case: Case, calls: int) -> list[float]:
        """Returns medians of a forward pass, of a step less that pass, and of a step."""
        pairs = [(self.seconds(case.forward), self.seconds(case.step)) for _ in range(calls)]
        rows = [(forward, step - forward, step) for forward, step in pairs]
        return [median(column) for column in zip(*rows, strict=True)]

    def calls(self, functions: list[Callable[[], list[Any]]], budget: float) -> int:
        """Returns how many calls of all of them fit into a budget; the same on all ranks."""
        once = sum(self.seconds(function) for function in functions)
        return int(self.same_on_all(min(max(int(budget / once), 1), MOST_CALLS)))


def difference(results: list[np.ndarray], expected: list[np.ndarray]) -> str:
    """Returns which result differs too much, or an empty string."""
    for number, (result, reference) in enumerate(zip(results, expected, strict=False)):
        off = np.linalg.norm(result - reference) / np.linalg.norm(reference)
        if not off <= TOLERANCE:  # so written, NaN is wrong, too
            return f"{'loss' if number == 0 else f'gradient {number}'} is off by {off:.2g}"
    return ""


def check(job: Job, cases: dict[str, Case], fault: str | None) -> tuple[dict[str, str], Any]:
    """Returns wrong results by way, and the norms of the reference."""
    reference, faults = job.results(cases[REFERENCE]), {}
    expected = reference + job.every_step(WAYS[REFERENCE])
    for name, case in cases.items():
        if name == REFERENCE:
            continue
        results = job.results(case)
        if not WAYS[name].over:  # its states are on several ranks; its gradients are checked
            results += job.every_step(WAYS[name])
        if name == fault:
            results = [1.01 * result for result in results]
        if problem := difference(results, expected):
            faults[name] = problem
    return faults, [float(np.linalg.norm(result)) for result in reference]


def measure(cell: Cell, options: Options) -> Report:
    """Measures a cell by all ways."""
    job, budget = Job(cell, options), options["budget"]
    cases = {name: job.case(way) for name, way in ways(job.ranks, job.kind).items()}
    faults, norms = check(job, cases, options["fault"])
    calls = {name: job.calls([case.forward, case.step], budget) for name, case in cases.items()}
    make = job.jacobians(cases["scan"]) if "scan" in cases else None
    makings = job.calls([make], budget) if make else 0
    rounds: dict[str, list[list[float]]] = {name: [] for name in cases}
    jacobians = []
    for _ in range(options["rounds"]):
        for name, case in cases.items():
            rounds[name].append(job.turn(case, calls[name]))
        if make:
            jacobians.append(median(job.seconds(make) for _ in range(makings)))
    return {"rounds": rounds, "jacobians": jacobians, "wrong": faults, "norms": norms}


def costs(units: int, threads: int) -> tuple[float, float]:
    """Returns the seconds of a product of two matrices, and of a matrix and a vector.

    Each is the time of a long chain less that of a short one, which leaves the cost of calls out.
    The matrices stay in the cache where possible.
    """
    import tensorflow as tf

    from ringar.parallel.scan import chain

    long = min(max((1 << 20) // (4 * units * units), 16), 4096)
    random = np.random.default_rng(3)
    all_matrices = random.normal(size=(long, 1, units, units), scale=units**-0.5)
    matrices, options = tf.constant(all_matrices, tf.float32), chain.Options(62, threads)
    part, vector = matrices[: long // 4], tf.ones([1, units])

    def fastest(function: Callable[[], Any]) -> float:
        times = []
        for _ in range(20):
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
        return min(times[2:])

    def per_matrix(function: Callable[[Any], Any]) -> float:
        gap = fastest(lambda: function(matrices)) - fastest(lambda: function(part))
        return max(gap, 1e-9) / (long - long // 4)

    product = per_matrix(lambda m: chain.reduce_chain(m, None, adjoint=True, options=options))
    apply = per_matrix(lambda m: chain.scan(m, vector, adjoint=True, levels=0, threads=threads))
    return product, apply


def main() -> None:
    options = read_options()
    rank = options["rank"] = start(options, deadline=240)
    import tensorflow as tf

    report: Report = {"cells": []}
    for numbers in options["cells"]:
        report["cells"].append(measure(Cell(*numbers), options))
        tf.keras.backend.clear_session()
        gc.collect()
    report["costs"] = {units: costs(units, options["threads"]) for units in options["costs"]}
    write_report(options, rank, report)
    if options["ranks"] > 1:
        import ringar

        ringar.shutdown()


if __name__ == "__main__":
    main()
