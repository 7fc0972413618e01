"""Runs the training jobs: one model in a job of its own, or several ways to train in turn."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.harness import launch
from benchmarks.harness.jobs import Reports, run_worker
from benchmarks.harness.processes import JobFailedError
from benchmarks.harness.series import Series, slowest, step_by_step
from ringar.keras.buckets import DEFAULT_BUCKET_BYTES, DEFAULT_FIRST_BUCKET_BYTES

STEPS = {"mlp": 2000, "small_cnn": 100, "alexnet": 6, "resnet50": 4}
"""Steps per epoch: about a second's worth or more."""

LIMIT = 300.0
"""Seconds that a job may take."""

Candidate = tuple[int, int]
"""Bytes of a bucket, and of the first one."""

DEFAULT: Candidate = (DEFAULT_BUCKET_BYTES, DEFAULT_FIRST_BUCKET_BYTES)


Case = tuple[str, int, bool]
"""Model, processes, with ringar."""


def cases(models: Sequence[str], processes: Sequence[int]) -> list[Case]:
    """Returns every model on every number of processes, plain and with ringar."""
    return [(m, n, with_ringar) for m in models for n in processes for with_ringar in (False, True)]


def title(case: Case) -> str:
    """Returns a case in words."""
    model, processes, with_ringar = case
    return f"{model}, {processes} x {'ringar' if with_ringar else 'plain Keras'}"


def collect(case_list: Sequence[Case], rounds: int, epochs: int = 3) -> dict[Case, Series]:
    """Measures all cases in turn, `rounds` times."""
    outcome = {case: Series() for case in case_list}
    for number in range(rounds):
        for (model, processes, with_ringar), result in outcome.items():
            library = "ringar" if with_ringar else "plain"
            print(
                f"round {number + 1} of {rounds}: {model}, {processes} x {library}", file=sys.stderr
            )
            train(model, processes, result, with_ringar=with_ringar, epochs=epochs)
    return outcome


def failures(outcome: dict[Case, Series]) -> dict[str, str]:
    """Returns why cases have no times, or fewer than they should have."""
    return {title(case): result.failure for case, result in outcome.items() if result.failure}


def train(
    model: str,
    ranks: int,
    result: Series,
    *,
    with_ringar: bool = True,
    epochs: int = 3,
) -> None:
    """Trains a model in a job of its own and adds its seconds per step to `result`.

    A job that fails, or takes more than `LIMIT` seconds, is noted there and not tried again.
    """
    if result.failure:
        return
    steps = STEPS[model]
    options = {"model": model, "ringar": with_ringar, "steps": steps, "epochs": epochs}
    try:
        reports = run_worker(
            "benchmarks.training.worker", options, ranks, deadline=LIMIT,
            command=launch.ringarrun if with_ringar else launch.plain,
        )  # fmt: skip
    except JobFailedError as error:
        result.failure = str(error)
        return
    result.rounds.append([seconds / steps for seconds in slowest(r["seconds"] for r in reports)])
    if not with_ringar:
        result.bounds.append(step_by_step(r["steps"] for r in reports))
    result.errors += sum(r["wrong"] for r in reports)


def train_in_turn(ranks: int, bind_to: str, deadline: float = 900, **options: Any) -> Reports:
    """Trains a model in several ways in the same processes, see `training.bucket_worker`.

    Raises:
        JobFailedError: the job failed.
    """
    return run_worker(
        "benchmarks.training.bucket_worker", options, ranks, deadline=deadline,
        command=partial(launch.ringarrun, bind_to=bind_to),
    )  # fmt: skip
