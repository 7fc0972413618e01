"""Trains a stack of recurrent layers on one rank: `python -m benchmarks.wavefront.worker OPTIONS`.

Each case is a chunk, "auto" for ringar's choice, or "layers" for the same layers one after the
other in a `keras.Sequential`, which one rank runs. All cases of a job begin with the same weights
and the same sequences. Before they are timed, the loss and the gradients of each must be those of
"layers". Then whole steps of training are timed in turn, some rounds: forward, loss, backward, the
reduction of gradients and the optimizer's update.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import asdict
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness.worker import read_options, start, write_report

TOLERANCE = 1e-4
"""Relative, of the norm of each gradient and of the loss: float32, summed in another order."""
CELLS = {"gru": "ScanGRU", "lstm": "ScanLSTM", "rnn": "ScanSimpleRNN"}
REFERENCE = "layers"

Options = dict[str, Any]
Report = dict[str, Any]
Step = Callable[[], Any]


class Job:
    """The sequences, and the stack in all its cases."""

    def __init__(self, options: Options) -> None:
        import tensorflow as tf

        self.options = options
        random = np.random.default_rng(3)
        shape = options["batch"], options["steps"], options["units"]
        self.x = tf.constant(random.normal(size=shape).astype(np.float32))
        self.y = tf.constant(random.normal(size=shape).astype(np.float32))
        self.grid: Any = None
        if options["ranks"] > 1:
            import ringar

            self.grid = ringar.parallel.Grid(model=options["ranks"])

    def model(self, case: str) -> Any:
        """Returns the stack of a case, with the weights that all cases have."""
        import keras

        import ringar

        keras.utils.set_random_seed(1)
        options = self.options
        kind = getattr(ringar.layers, CELLS[options["cell"]])
        layers = [kind(options["units"], return_sequences=True, threads=options["threads"])
                  for _ in range(options["layers"])]  # fmt: skip
        inputs = keras.Input(batch_shape=self.x.shape)
        if case == REFERENCE:
            return keras.Sequential([inputs, *layers])
        chunk = None if case == "auto" else int(case)
        return keras.Sequential([inputs, ringar.parallel.Wavefront(layers, chunk)])

    def functions(self, case: str) -> tuple[Any, Step, Step]:
        """Returns the model, a function of its loss and gradients, and a step of training."""
        import keras
        import tensorflow as tf

        import ringar

        model = self.model(case)
        optimizer = keras.optimizers.SGD(1e-3)
        reduced = self.options["ranks"] > 1
        if reduced:
            optimizer = ringar.DistributedOptimizer(optimizer)
        optimizer.build(model.trainable_variables)
        variables = model.trainable_variables

        def gradients() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(self.x, training=True) - self.y))
            return loss, tape.gradient(loss, [v.value for v in variables])

        @tf.function(autograph=False)
        def check() -> Any:
            loss, tensors = gradients()
            if reduced and case != REFERENCE:
                tensors = ringar.grouped_allreduce(tensors)
            return [loss, *tensors]

        @tf.function(autograph=False)
        def step() -> Any:
            loss, tensors = gradients()
            optimizer.apply(tensors, variables)
            return loss

        return model, check, step


def greatest_difference(results: list[Any], expected: list[Any]) -> float:
    """Returns the greatest relative difference of two lists of tensors."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(results, expected, strict=True)]
    return max(float(np.linalg.norm(a - b) / (np.linalg.norm(b) + 1e-12)) for a, b in pairs)


def timed(step: Step, count: int) -> float:
    """Returns the median time of so many steps."""
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        float(step())
        times.append(time.perf_counter() - begin)
    return median(times)


def timeline(job: Job, chunk: int) -> list[dict[str, Any]]:
    """Returns the cells of the last of some steps in eager code, in seconds."""
    import tensorflow as tf

    model = job.model(str(chunk))
    layer = model.layers[-1]
    for last in (False, False, True):
        if last:
            layer.record(True)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(job.x, training=True) - job.y))
        tape.gradient(loss, [v.value for v in model.trainable_variables])
    return [asdict(event) for event in layer.record(False)]


def measure(job: Job) -> Report:
    """Checks all cases, then times them in turn."""
    options = job.options
    cases = {case: job.functions(case) for case in options["cases"]}
    expected = [np.asarray(t) for t in job.functions(REFERENCE)[1]()]
    errors = {
        case: greatest_difference(list(check()), expected) for case, (_, check, _) in cases.items()
    }
    report: Report = {"errors": errors, "seconds": {}, "plans": {}}
    for case, (model, _, step) in cases.items():
        if case == "auto":
            plan = model.layers[-1].plan(options["steps"], options["batch"])
            report["plans"][case] = {"chunk": plan.chunk, "blocks": plan.blocks}
        timed(step, 3)
    rounds: dict[str, list[float]] = {case: [] for case in cases}
    for _ in range(options["rounds"]):
        for case, (_, _, step) in cases.items():
            gc.collect()
            rounds[case].append(timed(step, options["counts"]))
    report["seconds"] = rounds
    if options.get("timeline"):
        report["timeline"] = timeline(job, options["timeline"])
    return report


def main() -> None:
    options = read_options()
    rank = start(options, deadline=120)
    write_report(options, rank, measure(Job(options)))
    if options["ranks"] > 1:
        import ringar

        ringar.shutdown()


if __name__ == "__main__":
    main()
