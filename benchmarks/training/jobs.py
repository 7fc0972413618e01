"""Runs jobs that train a model in several ways in turn."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.harness import launch
from benchmarks.harness.jobs import Reports, run_worker
from ringar.keras.buckets import DEFAULT_BUCKET_BYTES, DEFAULT_FIRST_BUCKET_BYTES

Candidate = tuple[int, int]
"""Bytes of a bucket, and of the first one."""

DEFAULT: Candidate = (DEFAULT_BUCKET_BYTES, DEFAULT_FIRST_BUCKET_BYTES)


def train_in_turn(ranks: int, bind_to: str, deadline: float = 900, **options: Any) -> Reports:
    """Trains a model in several ways in the same processes, see `training.bucket_worker`.

    Raises:
        JobFailedError: the job failed.
    """
    return run_worker(
        "benchmarks.training.bucket_worker", options, ranks, deadline=deadline,
        command=partial(launch.ringarrun, bind_to=bind_to),
    )  # fmt: skip
