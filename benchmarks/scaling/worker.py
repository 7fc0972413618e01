"""Measures a whole job on its own ranks: `python -m benchmarks.scaling.worker OPTIONS`.

One start serves all cases. Every rank walks through the same cases; those that are no members of a
case wait for its end. The kinds of steps of a case:

- `alone`: a plain step on one rank, while all others wait. Ideal is taken from it.
- `plain`: the same step on all ranks of the case side by side, without an exchange. What it takes
  longer is the machine's doing: cores, caches and memory that are shared.
- `ringar`: the step with the exchange of gradients. What it takes longer than the plain one is the
  part that is communication. The timeline of rank 0 tells for which part of the step an exchange
  was under way, which overlap may have hidden.

Rounds go through all kinds and numbers of ranks in turn. In the last round the ranks of each case
begin with equal weights, on different data, and their weights are compared after the timed steps.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.worker import read_options, write_report
from benchmarks.scaling import network
from benchmarks.scaling.placement import Placement, this_seat

Step = Callable[[], Any]
RECORDED = 5
"""Steps of the timeline."""
LEARNING_RATE = 1e-5
DEADLINE = 1200.0
"""Seconds that waiting ranks allow a turn of the others."""


@dataclass
class Case:
    """A kind of step on a number of ranks, and its measurements.

    Attributes:
        kind: alone, plain or ringar.
        ranks: how many take the step.
        batch: images of each rank.
        seconds: of a step, by round.
        busy: the part of a step in which rank 0 had an exchange under way.
        errors: ranks whose weights differ, or are no numbers.
    """

    kind: str
    ranks: int
    batch: int
    seconds: list[float] = field(default_factory=list)
    busy: float = 0.0
    errors: int = 0


def cases(counts: Sequence[int], batch: int) -> list[Case]:
    """Returns the cases of weak and of strong scaling of a model.

    Weak: each rank has `batch` images. Strong: all have together, as far as the number of ranks
    divides it.
    """
    sizes = [(n, batch) for n in counts]
    sizes += [(n, batch // n) for n in counts if n > 1 and batch % n == 0]
    singles = [Case("alone", 1, size) for size in dict.fromkeys(size for _, size in sizes)]
    return [*singles, *(Case(kind, *size) for size in sizes for kind in ("plain", "ringar")
                      if (kind, size[0]) != ("plain", 1))]  # fmt: skip


class Training:
    """A model on this rank, and the steps that are measured."""

    def __init__(self, name: str, rank: int, batch: int | None = None) -> None:
        import keras

        from benchmarks.training.models import MODELS, data_for

        keras.utils.set_random_seed(1)
        build, default = MODELS[name]
        self.model, self.batch = build(), batch or default
        self._data = data_for(self.model, self.batch, seed=rank)
        self._compiled: list[Any] = []
        self._plain: dict[int, Step] = {}

    def step(self, case: Case, group: Any) -> Step:
        """Returns the training step of `fit` for a case; it has run once."""
        import keras

        import ringar

        optimizer: Any = keras.optimizers.SGD(LEARNING_RATE)
        if case.kind == "ringar":
            optimizer = ringar.DistributedOptimizer(optimizer, process_set=group)
            return self._compile(optimizer, case.batch)
        if case.batch not in self._plain:
            self._plain[case.batch] = self._compile(optimizer, case.batch)
        return self._plain[case.batch]

    def _compile(self, optimizer: Any, batch: int) -> Step:
        import tensorflow as tf

        self.model.compile(optimizer, "mse")
        self.model.make_train_function()
        function = self.model.train_function
        rows = tuple(array[:batch] for array in self._data)
        data = iter(tf.data.Dataset.from_tensors(rows).repeat())
        function(data)  # traces, with the optimizer that the model has just now
        # The next compile() lets go of what this function uses.
        self._compiled.append((optimizer, self.model._loss_tracker))
        return lambda: function(data)

    def layers(self) -> list[list[int]]:
        """Returns trainable parameters and multiply-adds of each layer, for the prediction."""
        rows = []
        for layer in self.model._flatten_layers(include_self=False, recursive=True):
            parameters = sum(math.prod(v.shape) for v in layer._trainable_variables)
            if parameters:
                places = math.prod(layer.output.shape[1:-1])
                rows.append([parameters, parameters * places])
        return rows

    def digest(self) -> str:
        """Returns a digest of all weights, or "" if one of them is no number."""
        weights = self.model.get_weights()
        if not all(np.isfinite(w).all() for w in weights):
            return ""
        return hashlib.sha256(b"".join(w.tobytes() for w in weights)).hexdigest()


class Worker:
    """This rank, which walks through all cases with the others."""

    def __init__(self, options: dict[str, Any]) -> None:
        import ringar

        self.options = options
        self.placement = Placement(ringar.allgather_object(this_seat()))
        self.counts = self.placement.counts(options.get("hosts", ()))
        self.groups = {n: ringar.add_process_set(self.placement.members(n)) for n in self.counts}

    def share(self, number: float) -> float:
        """Returns the number of the rank that is a member of every case."""
        import ringar

        first = self.placement.members(1)[0]
        return float(ringar.broadcast_object(number, root_rank=first))

    def measure_model(self, name: str) -> dict[str, Any]:
        """Measures all cases of a model at every rate; returns plain data."""
        import ringar

        training = Training(name, ringar.rank(), self.options.get("batch"))
        plan = cases(self.counts, training.batch)
        steps: list[Step | None] = [None] * len(plan)
        # All ranks first: a model's first exchange makes its ranks begin alike.
        for place, case in sorted(enumerate(plan), key=lambda pair: -pair[1].ranks):
            group = self.groups[case.ranks]
            if group.included():
                steps[place] = training.step(case, group)
            ringar.barrier()
        measured = []
        for rate in self.options["rates"]:
            self.set_rate(rate)
            at_rate = [Case(case.kind, case.ranks, case.batch) for case in plan]
            for number in range(self.options["rounds"]):
                pairs = list(zip(at_rate, steps, strict=True))
                is_last = number == self.options["rounds"] - 1
                for case, step in pairs[:: 1 if number % 2 else -1]:
                    self.take_turn(case, step, training, is_last)
            measured += [{"model": name, "rate_mbit": rate, **vars(case)} for case in at_rate]
        return {"layers": training.layers(), "measured": measured}

    def take_turn(self, case: Case, step: Step | None, training: Training, is_last: bool) -> None:
        """Times the steps of a case, checks them in the last round, and waits for all ranks."""
        import ringar

        if step is not None:
            group = self.groups[case.ranks]
            is_checked = is_last and case.kind == "ringar"
            if is_checked:
                ringar.broadcast_variables(
                    training.model.variables, root_rank=group.ranks[0], process_set=group
                )
            single = self._timed(step, 1, group)
            count = max(1, int(self.options["seconds"] / single))
            count = ringar.broadcast_object(count, group.ranks[0], process_set=group)
            case.seconds.append(self._timed(step, count, group))
            if is_checked:
                digests = ringar.allgather_object(training.digest(), process_set=group)
                case.errors = sum(not d or d != digests[0] for d in digests)
                case.busy = self._busy_part(step, group) if case.ranks > 1 else 0.0
        ringar.barrier()

    def _timed(self, step: Step, count: int, group: Any) -> float:
        """Returns the seconds of a step until the slowest rank of the group has ended."""
        import ringar

        ringar.barrier(process_set=group)
        begin = time.perf_counter()
        for _ in range(count):
            step()
        ringar.barrier(process_set=group)
        return (time.perf_counter() - begin) / count

    def _busy_part(self, step: Step, group: Any) -> float:
        """Returns the part of a step in which a bucket of this rank's timeline is under way."""
        import ringar
        from benchmarks.training.overlap_trace import beside, transfers
        from ringar.job import native, timeline

        with tempfile.TemporaryDirectory() as folder:
            timeline.record(f"{folder}/timeline", ringar.rank())
            ringar.barrier(process_set=group)
            begin = time.monotonic_ns() / 1e3
            for _ in range(RECORDED):
                step()
            end = time.monotonic_ns() / 1e3
            native.library().ringar_stop_timeline()
            (path,) = Path(folder).iterdir()
            exchanges = transfers(json.loads(path.read_text()))
        spans = [(exchange.begin, exchange.end) for exchange in exchanges]
        return beside((begin, end), spans) / (end - begin)

    def set_rate(self, rate_mbit: float | None) -> None:
        """Sets the rate of all links, which are those of network namespaces."""
        import ringar

        if rate_mbit is not None and ringar.local_rank() == 0:
            from benchmarks.hosts.fit_worker import set_rate

            set_rate(rate_mbit)
        ringar.barrier()

    def measure(self) -> dict[str, Any] | None:
        """Measures everything; returns plain data on one rank, which has to report it."""
        from benchmarks.harness import machine
        from ringar.keras import buckets

        networks = []
        for rate in self.options["rates"]:
            self.set_rate(rate)
            parameters = network.measure(self.placement, self.share)
            networks.append(
                {"rate_mbit": rate, "parameters": vars(parameters) if parameters else None}
            )
        models = {name: self.measure_model(name) for name in self.options["models"]}
        if not self.groups[1].included():
            return None
        threads = self.options["threads"]
        return {
            "machine": {**machine.describe(), "cores": self.placement.cores()},
            **self.placement.describe(),
            "threads": threads,
            "cases": [
                {"ranks": n, "hosts": self.placement.hosts_of(n),
                 "turns": self.placement.turns(n, threads)} for n in self.counts
            ],
            "networks": networks,
            "bucket_bytes": buckets.default_bytes(),
            "layers": {name: model["layers"] for name, model in models.items()},
            "measured": [row for model in models.values() for row in model["measured"]],
        }  # fmt: skip


def measure(options: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
    """Joins the job and measures it.

    Args:
        options: `models`, `rounds`, `seconds` of a turn, `threads` of a rank, and `rates`: Mbit/s
            that links are set to, one after the other; None: links stay as they are. Optional are
            `hosts`, numbers of hosts in place of 1, 2, 4, ... and all, and `batch`, in place of
            the model's.

    Returns:
        The number of this rank; and plain data on the one that has to report them, else None.
    """
    import ringar

    ringar.init(
        intra_op_threads=options["threads"], inter_op_threads=max(2, options["threads"]),
        deadline=DEADLINE, stall_warning=DEADLINE / 2,
    )  # fmt: skip
    rank, data = ringar.rank(), Worker(options).measure()
    ringar.shutdown()
    return rank, data


def main() -> None:
    options = read_options()
    rank, data = measure(options)
    write_report(options, rank, {"data": data})


if __name__ == "__main__":
    main()
