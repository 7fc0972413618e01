"""Trains one model in several ways: `python -m benchmarks.training.bucket_worker OPTIONS`.

All candidates train the same model in the same processes and are timed in turn: two jobs of the
same program differ by more than two bucket sizes do. A candidate is the size of a bucket and that
of the first bucket in bytes. None trains without any exchange, which is faster than any plan.
Candidates with the same plan for this model are one. In the end the weights of all ranks are
compared.

With the option "record", this many steps of the first candidate are recorded afterwards: by
ringar's timeline on every rank, and by TensorFlow's profiler on rank 0.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.worker import read_options, weights_differ, write_report

Step = Callable[[], Any]
Plan = tuple[str, ...]
"""The buckets' labels; of no exchange, none."""

#: Scope of the optimizer's operations, by which a profile tells them from the model's.
OPTIMIZER = "optimizer"


class Trainer:
    """A model and its batch; makes training steps, as `fit` runs them, that share its weights."""

    def __init__(self, name: str, rank: int) -> None:
        import keras
        import tensorflow as tf

        from benchmarks.training.models import MODELS, data_for

        build, batch = MODELS[name]
        keras.utils.set_random_seed(1)
        self.model = build()
        inputs, targets = data_for(self.model, batch)
        # Different gradients on every rank: else weights would agree with nothing exchanged, too.
        data = tf.data.Dataset.from_tensors((inputs, targets + rank)).repeat()
        self.iterator = iter(data)
        self._compiled: list[Any] = []

    def plan(self, bucket_bytes: int | None, first_bucket_bytes: int | None) -> Plan:
        """Returns the labels of the buckets."""
        from ringar.keras import buckets

        if bucket_bytes is None:
            return ()
        variables = self.model.trainable_variables
        plan = buckets.plan(variables, bucket_bytes, first_bucket_bytes)
        return tuple(bucket.label for bucket in plan)

    def step(self, bucket_bytes: int | None, first_bucket_bytes: int | None) -> Step:
        """Returns a step whose gradients travel in such buckets, or with None not at all."""
        import keras

        import ringar
        from ringar.keras import buckets

        optimizer: Any = keras.optimizers.SGD(1e-4, name=OPTIMIZER)
        if bucket_bytes is not None:
            optimizer = ringar.DistributedOptimizer(optimizer, bucket_bytes=bucket_bytes)
        self.model.compile(optimizer=optimizer, loss="mse")
        self.model.make_train_function()
        function = self.model.train_function
        default = buckets.DEFAULT_FIRST_BUCKET_BYTES
        if first_bucket_bytes is not None:
            buckets.DEFAULT_FIRST_BUCKET_BYTES = first_bucket_bytes
        try:
            function(self.iterator)  # traces, with the optimizer that the model has just now
        finally:
            buckets.DEFAULT_FIRST_BUCKET_BYTES = default
        # The next compile() lets go of what this function uses.
        self._compiled.append((optimizer, self.model._loss_tracker))
        return lambda: function(self.iterator)

    def wrong_weights(self, steps: list[Step]) -> int:
        """Takes `steps` from the same weights on all ranks and counts weights that then differ."""
        import ringar

        ringar.broadcast_variables(self.model.variables, root_rank=0)
        for step in steps:
            step()
            step()
        return weights_differ(self.model)


def in_turn(steps: list[Step], rounds: int, count: int) -> list[list[float]]:
    """Returns seconds per step: a list per candidate, with a value per round."""
    import ringar

    times: list[list[float]] = [[] for _ in steps]
    for number in range(rounds):
        # In both directions: a candidate that follows a large one finds other caches.
        order = list(range(len(steps)))[:: 1 if number % 2 else -1]
        for index in order:
            steps[index]()
            ringar.barrier()
            start = time.perf_counter()
            for _ in range(count):
                steps[index]()
            times[index].append((time.perf_counter() - start) / count)
    return times


def record(step: Step, count: int, folder: Path, rank: int) -> None:
    """Writes `timeline.rank<r>` on every rank, and on rank 0 `ops.json` of the same clock."""
    import tensorflow as tf

    import ringar
    from ringar.job import timeline

    timeline.record(str(folder / "timeline"), rank)
    if rank == 0:
        tf.profiler.experimental.start(str(folder))
    ringar.barrier()
    marks, spans = [], []
    for number in range(count):
        # Between two readings of our clock: this mark in the profile tells how far its clock is.
        before = time.monotonic_ns()
        with tf.profiler.experimental.Trace(f"clock-{number}"):
            marks.append((before, time.monotonic_ns()))
        begin = time.monotonic_ns()
        step()
        spans.append((begin / 1e3, time.monotonic_ns() / 1e3))
    if rank == 0:
        tf.profiler.experimental.stop()
        ops, error = read_profile(folder, marks)
        report = {"ops": ops, "steps": spans, "clock_error_us": error}
        (folder / "ops.json").write_text(json.dumps(report))


def read_profile(
    folder: Path, marks: list[tuple[int, int]]
) -> tuple[list[tuple[str, float, float]], float]:
    """Reads TensorFlow's operations and the error of their clock from a profile.

    Args:
        folder: what was given to the profiler.
        marks: the event "clock-<i>" began between these times, in ns of CLOCK_MONOTONIC.

    Returns:
        (name:type, begin, end) of each operation, in microseconds of CLOCK_MONOTONIC and in the
        order of their begin; and by how many microseconds these may be wrong.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    (path,) = folder.rglob("*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    events, least, most = [], float("-inf"), float("inf")
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                begin = line.timestamp_ns + event.offset_ps / 1e3
                if name.startswith("clock-"):
                    before, after = marks[int(name.removeprefix("clock-"))]
                    least, most = max(least, begin - after), min(most, begin - before)
                # An operation is "its/name:Type"; other events have "::", blanks or no colon.
                elif re.fullmatch(r"[^:\s]+:_?[A-Z]\w*", name):
                    events.append((name, begin, begin + event.duration_ps / 1e3))
    shift = (least + most) / 2
    ops = [(name, (begin - shift) / 1e3, (end - shift) / 1e3) for name, begin, end in events]
    return sorted(ops, key=lambda op: op[1]), abs(most - least) / 2e3


def main() -> None:
    options = read_options()
    import ringar

    ringar.init(intra_op_threads=options.get("intra"), inter_op_threads=options.get("inter"))
    rank = ringar.rank()
    trainer = Trainer(options["model"], rank)
    candidates = [tuple(candidate or (None, None)) for candidate in options["candidates"]]
    plans = [trainer.plan(*candidate) for candidate in candidates]
    steps = {
        plan: trainer.step(*candidate)
        for plan, candidate in dict(zip(reversed(plans), reversed(candidates), strict=True)).items()
    }
    times = in_turn(list(steps.values()), options["rounds"], options["steps"])
    seconds = dict(zip(steps, times, strict=True))
    errors = trainer.wrong_weights([step for plan, step in steps.items() if plan])
    if options.get("record"):
        record(steps[plans[0]], options["record"], Path(options["folder"]), rank)
    ordered = [seconds[plan] for plan in plans]
    write_report(options, rank, {"plans": plans, "seconds": ordered, "wrong": errors})


if __name__ == "__main__":
    main()
