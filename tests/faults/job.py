"""What the jobs of these tests run: scenarios that must fail, each written down by every rank.

A job's script calls :func:`attempt` once per scenario. TensorFlow's import costs seconds per job,
so a script holds as many scenarios as leave the job usable; the tests then look at one each.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.plugin.place import RANK as RANK
from tests.plugin.place import SIZE as SIZE


def folder() -> Path:
    """Where the ranks of this job write: the script's first argument."""
    return Path(sys.argv[1])


def record(scenario: str, **values: Any) -> None:
    """Writes down what this rank saw; on disk at once, since ranks here are killed."""
    with open(folder() / f"{RANK}.jsonl", "a") as file:
        file.write(json.dumps({"scenario": scenario, **values}) + "\n")


def attempt(scenario: str, function: Callable[[], object]) -> None:
    """Calls ``function`` and writes down what it raised, the message, and how long it took."""
    start = time.monotonic()
    kinds: list[str] = []
    message = ""
    try:
        function()
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        message = getattr(error, "message", None) or str(error)
    record(scenario, kinds=kinds, message=message, seconds=time.monotonic() - start)


def say(event: str) -> None:
    """Tells the other ranks that something has happened."""
    (folder() / event).touch()


def wait_for(event: str, seconds: float = 30.0) -> None:
    """Waits until another rank has said it, without ringar."""
    give_up = time.monotonic() + seconds
    while not (folder() / event).exists():
        if time.monotonic() > give_up:
            raise TimeoutError(f"rank {RANK} waited {seconds} s for {event}")
        time.sleep(0.01)


def works() -> None:
    """Fails unless an allreduce over all ranks does what it should."""
    import numpy as np

    import ringar

    values = np.arange(1000, dtype=np.float32) + RANK
    total = ringar.allreduce(values, op=ringar.Sum, name="still works")
    expected = np.arange(1000, dtype=np.float32) * SIZE + SIZE * (SIZE - 1) / 2
    np.testing.assert_array_equal(total, expected)
