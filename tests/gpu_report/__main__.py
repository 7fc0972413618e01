"""What works on the NVIDIA GPUs of this machine, on one page: `make gpu-report`.

    python -m tests.gpu_report [--output build/gpu-report.md]

Each line says `pass`, `FAIL` with the first error, or `not possible here` and why. The report goes
on after a failure; build/gpu-report/ has the outputs of all parts. Exits with 1 if a part has
failed, with 2 if there is no GPU.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ringar.launchers.command_line import check_build
from tests.gpu_report.parts import Part, parts
from tests.plugin.jobs import ROOT, JobResult, run_job
from tests.run_on_gpus import count_gpus, has_passed, nccl_version, settings

PASS, FAIL, IMPOSSIBLE = "pass", "FAIL", "not possible here"

_TENSORFLOW = """
import tensorflow as tf
print("TensorFlow sees", len(tf.config.list_physical_devices("GPU")), "GPUs; built for",
      tf.sysconfig.get_build_info().get("cuda_version", "no CUDA"))
"""
_CUPY = """
import cupy
name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
print("CuPy", cupy.__version__, "sees", name, "of", cupy.cuda.runtime.getDeviceCount(), "GPUs;",
      "sum of 1..4 is", int(cupy.arange(5).sum()))
"""


def environment() -> Iterator[str]:
    """Yield lines on the card, the driver and the versions."""
    for finding in check_build.findings():
        yield f"- {finding.name}: {finding.detail}"
    card = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,pcie.link.gen.max"]
    commands = {"nvidia-smi": [*card, "--format=csv,noheader"], "TensorFlow": None, "CuPy": None}
    for name, command in commands.items():
        source = {"TensorFlow": _TENSORFLOW, "CuPy": _CUPY}.get(name, "")
        try:
            result = run_job(None, command or source, deadline=60.0, fresh=True)
        except OSError as error:
            yield f"- {name}: {error.strerror}"
            continue
        yield f"- {name}: {result.stdout.strip() or first_error(result)}"


def first_error(result: JobResult) -> str:
    """Return the line of a job's output that tells best why it failed."""
    if result.code is None:
        return f"no end after {result.seconds:.0f} s"
    lines = (result.stdout + "\n" + result.stderr).splitlines()
    for pattern in (r"^(?:rank \d+ \| )?E  +\S", r"(?:^|\| )\w[\w.]*(?:Error|Exception)\b", r"\S"):
        for line in lines if pattern != r"\S" else reversed(lines):
            if re.search(pattern, line):
                return line.strip()[:200]
    return f"ended with {result.code}"


def judge(part: Part, result: JobResult) -> tuple[str, str]:
    """Return the state of a part, and what the report says of it."""
    lines = [line.strip() for line in result.stdout.splitlines() if line.strip()]
    if result.leftovers:
        return FAIL, f"processes outlived the job: {result.leftovers[0][:150]}"
    is_pytest = "pytest" in part.words
    if result.code != 0 or (is_pytest and not has_passed(result.code, result.stdout)):
        return FAIL, first_error(result)
    shown = [line for line in lines if part.detail in line] or [""]
    return PASS, shown[-1][:200]


def report(gpus: int, reason: str, nccl: tuple[int, int] | None) -> Iterator[tuple[str, str]]:
    """Yield the state and the text of each line."""
    yield "", f"# GPU report: {gpus} GPUs{f' ({reason})' if reason else ''}\n"
    for line in environment():
        yield "", line
    yield "", "\n| what | result | |\n|---|---|---|"
    for part in parts(gpus, nccl):
        state, detail = IMPOSSIBLE, part.impossible
        if not part.impossible:
            result = run_job(
                part.ranks or None,
                [sys.executable, *part.words],
                launcher_args=["--no-prefix"],
                deadline=part.seconds,
                env={**settings(), **part.environment},
                fresh=True,
            )
            state, detail = judge(part, result)
            log = ROOT / "build" / "gpu-report" / f"{re.sub(r'[^a-z0-9]+', '-', part.title)}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(str(result))
            detail = f"{detail} ({result.seconds:.0f} s)"
        yield state, f"| {part.title} | {state} | {detail.replace('|', '/')} |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu_report", description=__doc__)
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    options = parser.parse_args(arguments)
    gpus, reason = count_gpus()
    states, lines = [], []
    for state, line in report(gpus, reason, nccl_version()):
        print(line, flush=True)
        states.append(state)
        lines.append(line)
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text("\n".join([*lines, ""]))
    return 2 if gpus == 0 else int(FAIL in states)


if __name__ == "__main__":
    sys.exit(main())
