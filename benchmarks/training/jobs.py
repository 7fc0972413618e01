"""Trains a model in a job of its own and brings back seconds per step.

What the benchmarks `overhead` and `scaling` have in common.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.harness import launch, processes
from benchmarks.harness.series import Series

STEPS = {"mlp": 2000, "small_cnn": 100, "alexnet": 6, "resnet50": 4}
"""Steps per epoch: about a second's worth or more."""

LIMIT = 300.0
"""Seconds that a job may take."""


def train(
    model: str,
    ranks: int,
    result: Series,
    *,
    with_ringar: bool = True,
    epochs: int = 3,
) -> None:
    """Runs a job and adds its times to ``result``.

    A job that fails, or takes more than ``LIMIT`` seconds, is noted there and not tried again.
    """
    if result.failure:
        return
    steps = STEPS[model]
    options = {"model": model, "ringar": with_ringar, "steps": steps, "epochs": epochs}
    with tempfile.TemporaryDirectory() as folder:
        program = ["-m", "benchmarks.training.worker", json.dumps({**options, "folder": folder})]
        if with_ringar:
            command = launch.ringarrun(Path(), ranks, program)
        else:
            command = launch.plain(Path("no environment"), ranks, program)
        try:
            processes.run_command(command, deadline=LIMIT)
        except processes.JobFailedError as error:
            result.failure = str(error)
            return
        reports = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    result.rounds.append([max(r["seconds"][i] for r in reports) / steps for i in range(epochs)])
    result.wrong += sum(r["wrong"] for r in reports)
