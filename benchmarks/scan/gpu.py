"""How long does the backward pass of an RNN take on a GPU: by a scan, against cuDNN?

    python -m benchmarks.scan_gpu --output build/scan_gpu
    python -m benchmarks.scan_gpu --rounds 2 --most-steps 1000

The settings of the paper (Wang, Bai, Pekhimenko, BPPSA, arXiv:1907.10134): a tanh RNN of 20 units,
float32, the loss a function of the last state; 10 to 30,000 steps with 16 examples, and 2 to 256
examples with 1000 steps. Backward by `ringar.cupy.scan` is everything from the stored states to the
gradients of the weights: Jacobians, scan, products. Beside it PyTorch's nn.RNN, which is cuDNN's,
where torch with CUDA can be imported; a whole step of ours is cuDNN's forward pass and our backward
pass. Times are those between CUDA events around a call, the way to the GPU included.

The gradients of all steps are compared with float64: with the serial product on the CPU for a small
case, with the serial chain on the GPU for each case that is timed. Exits with 1 where they differ,
with 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness import command, machine, report
from benchmarks.harness.series import Series
from benchmarks.scan.rnn import Weights, count_wrong, forward, on_gpu, serial
from ringar.cupy import device, plan, scan
from ringar.errors import UnsupportedError

UNITS, INPUTS = 20, 1
STEPS = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000)
BATCHES = (2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Setting:
    """The size of a case."""

    steps: int
    batch: int


def settings(most_steps: int) -> list[Setting]:
    """Returns the paper's settings up to so many steps."""
    by_steps = [Setting(steps, 16) for steps in STEPS]
    by_batch = [Setting(1000, batch) for batch in BATCHES]
    return [
        setting for setting in dict.fromkeys(by_steps + by_batch) if setting.steps <= most_steps
    ]


class Case:
    """The data of a setting on the GPU, and the functions that are timed."""

    def __init__(self, cupy: Any, torch: Any, setting: Setting, seed: int = 0) -> None:
        self.cupy, self.setting = cupy, setting
        rng = np.random.default_rng(seed)
        bound = UNITS**-0.5  # of PyTorch's initial weights

        def draw(*shape: int) -> Any:
            return cupy.asarray(rng.uniform(-bound, bound, shape).astype(np.float32))

        self.weights = Weights(draw(UNITS, UNITS), draw(UNITS, INPUTS), draw(UNITS))
        bits = rng.integers(0, 2, (setting.steps, setting.batch, INPUTS))
        self.x = cupy.asarray(bits.astype(np.float32))
        self.gradient = cupy.asarray(rng.standard_normal((setting.batch, UNITS)).astype(np.float32))
        self.backward = on_gpu(cupy)
        self.torch = _Torch(torch, self) if torch else None
        self.h = self.torch.forward() if self.torch else forward(cupy, self.weights, self.x)

    def ways(self) -> dict[str, Callable[[], Any]]:
        """Returns the functions that are timed, by name."""
        ways: dict[str, Callable[[], Any]] = {"ringar_backward": self._backward}
        if self.torch:
            peer = self.torch
            ways["cudnn_backward"] = peer.backward
            ways["ringar_step"] = lambda: self.backward(
                self.weights, self.x, peer.forward(), self.gradient
            )
            ways["cudnn_step"] = peer.step
        return ways

    def _backward(self) -> Weights:
        return self.backward(self.weights, self.x, self.h, self.gradient)

    def count_errors(self) -> int:
        """Counts gradients of states that differ from those of a serial chain in float64."""
        cupy = self.cupy
        states = self.backward.states(self.weights, self.h, self.gradient)
        recurrent, h = self.weights.recurrent.astype(float), self.h.astype(float)
        jacobians = (1 - h * h)[..., None] * recurrent
        expected = scan(jacobians, self.gradient.astype(float), adjoint=True, levels=0)
        return count_wrong(cupy, states, expected)

    def wrong_on_cpu(self) -> int:
        """Counts those that differ from the serial product on the CPU."""
        states = self.backward.states(self.weights, self.h, self.gradient).get()
        expected = serial(self.weights.recurrent.get(), self.h.get(), self.gradient.get())
        return count_wrong(np, states, expected)


class _Torch:
    """nn.RNN with a case's weights and data."""

    def __init__(self, torch: Any, case: Case) -> None:
        self._torch, self._cupy = torch, case.cupy
        weights = case.weights
        self._rnn = torch.nn.RNN(INPUTS, UNITS, device="cuda")
        values = (weights.inputs, weights.recurrent, weights.bias, weights.bias * 0)
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        with torch.no_grad():
            for name, value in zip(names, values, strict=True):
                getattr(self._rnn, name).copy_(torch.from_dlpack(value))
        self._x = torch.from_dlpack(case.x)
        self._gradient = torch.from_dlpack(case.gradient)
        self._last: Any = None

    def forward(self) -> Any:
        """Returns the states as a CuPy array, without what cuDNN needs for a backward pass."""
        with self._torch.no_grad():
            return self._cupy.from_dlpack(self._rnn(self._x)[0])

    def prepare(self) -> None:
        """Runs the forward pass of a training step."""
        self._rnn.zero_grad(set_to_none=True)
        self._last = self._rnn(self._x)[0][-1]

    def backward(self) -> None:
        """Runs the backward pass, after `prepare`."""
        self._last.backward(self._gradient)

    def step(self) -> None:
        """Runs both passes."""
        self.prepare()
        self.backward()


def measure(case: Case, rounds: int, repeats: int) -> dict[str, Series]:
    """Times all ways in turn, backward passes without their forward pass."""
    cupy = case.cupy
    outcome = {name: Series() for name in case.ways()}
    start, end = cupy.cuda.Event(), cupy.cuda.Event()

    def time(name: str, way: Callable[[], Any]) -> float:
        if name == "cudnn_backward":
            case.torch.prepare()  # type: ignore[union-attr]
        cupy.cuda.Device().synchronize()
        start.record()
        way()
        end.record()
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, end)) * 1e-3

    for name, way in case.ways().items():  # compiles, fills the pools of memory
        time(name, way)
    for _ in range(rounds):
        for name, way in case.ways().items():
            outcome[name].rounds.append([time(name, way) for _ in range(repeats)])
    return outcome


def row(
    setting: Setting, outcome: dict[str, Series], errors: int, processors: int
) -> dict[str, Any]:
    """Returns the row of a setting as plain data."""
    schedule = plan.choose(setting.steps, setting.batch, UNITS, 4, processors)
    widths = [r.width for r in schedule.rounds]
    return {"steps": setting.steps, "batch": setting.batch, "widths": widths, "wrong": errors,
            "ways": {name: series.summary() for name, series in outcome.items()}}  # fmt: skip


def rows_text(rows: list[dict[str, Any]]) -> str:
    """Returns the table of all settings."""
    ways = list(dict.fromkeys(name for entry in rows for name in entry["ways"]))
    headers = ["steps", "batch", "spans of"]
    headers += [f"{name.replace('_', ' ')} (min, max)" for name in ways]
    headers += ["backward, x", "step, x", "#wrong"]
    return report.table(headers, [_line(entry, ways) for entry in rows])


def _line(entry: dict[str, Any], ways: list[str]) -> list[str]:
    def cell(name: str) -> str:
        times = entry["ways"].get(name)
        if times is None:
            return "-"
        return "{} ({}, {})".format(*report.spread(times))

    def ratio(phase: str) -> str:
        pair = [entry["ways"].get(f"{who}_{phase}") for who in ("cudnn", "ringar")]
        return f"{pair[0]['seconds'] / pair[1]['seconds']:.3g}" if all(pair) else "-"

    widths = ", ".join(map(str, entry["widths"])) or "serial"
    return [str(entry["steps"]), str(entry["batch"]), widths, *map(cell, ways),
            ratio("backward"), ratio("step"), str(entry["wrong"])]  # fmt: skip


def find_torch() -> tuple[Any, str]:
    """Returns PyTorch, or why there is none."""
    try:
        import torch
    except ImportError as error:
        return None, str(error)
    return (torch, "") if torch.cuda.is_available() else (None, "torch finds no CUDA")


def parser() -> argparse.ArgumentParser:
    result = command.parser("benchmarks.scan_gpu", __doc__)
    add = result.add_argument
    add("--rounds", type=int, default=5, help="(default %(default)s)")
    add("--repeats", type=int, default=10, help="of each way in a round (default %(default)s)")
    add("--most-steps", type=int, default=STEPS[-1], help="(default %(default)s)")
    return result


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        cupy = device.load()
    except (ImportError, UnsupportedError) as error:
        print(f"benchmarks.scan_gpu: {error}", file=sys.stderr)
        return 2
    torch, why = find_torch()
    number = cupy.cuda.Device().id
    card = cupy.cuda.runtime.getDeviceProperties(number)["name"].decode()
    processors = device.attributes(number)["MultiProcessorCount"]
    errors = Case(cupy, torch, Setting(131, 5)).wrong_on_cpu()
    rows = []
    for setting in settings(options.most_steps):
        print(setting, file=sys.stderr, flush=True)
        case = Case(cupy, torch, setting)
        outcome = measure(case, options.rounds, options.repeats)
        rows.append(row(setting, outcome, case.count_errors(), processors))
    host = machine.describe()
    print(f"# RNN of {UNITS} units on {card}, {machine.headline(host)}\n\n{rows_text(rows)}")
    reasons = {"cuDNN": why} if why else {}
    print(report.missing_lines(reasons), end="")
    if options.output:
        report.write_json(options.output, {"machine": host, "card": card, "missing": reasons,
                                           "wrong_on_cpu": errors, "rows": rows})  # fmt: skip
    errors += sum(entry["wrong"] for entry in rows)
    if errors:
        print(f"{errors} gradients differ from float64", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
