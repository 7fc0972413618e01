"""Functions in elastic jobs: results and errors of `ringar.run` when ranks are lost and join."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import ringar
from ringar.errors import DeadlineError, RankError
from ringar.horovod import run as horovod_run
from tests.elastic import functions
from tests.elastic.functions import add_up

pytestmark = [pytest.mark.job, pytest.mark.deadline(90)]

cloudpickle.register_pickle_by_value(functions)  # ranks do not import the tests
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGAR_GRACE_SCALE", "0.2")


@pytest.mark.slow
def test_results_are_of_the_last_world(tmp_path: Path) -> None:
    """A rank is killed, and another process takes its place."""
    results: list[Any] = ringar.run(
        add_up, [str(tmp_path), 2], np=2, min_np=1, timeout=60, options=["--reset-limit", "3"]
    )
    assert [rank for rank, *_ in results] == [0, 1]
    assert [sizes[-3:] for _, sizes, _ in results] == [[2, 1, 2]] * 2
    # Each step of the last commit counts once, in whatever world it was made.
    assert results[0][2] == results[1][2] == 0


@pytest.mark.slow
def test_horovods_run_is_elastic_too(tmp_path: Path) -> None:
    results: list[Any] = horovod_run(
        add_up, [str(tmp_path), 1], num_proc=2, min_num_proc=1, reset_limit=1
    )
    assert [(rank, sizes, rest) for rank, sizes, rest in results] == [(0, [2, 1], 0)]


def fails() -> None:
    ringar.init()
    raise KeyError("no such word")


def leaves_too_few() -> None:
    ringar.init()

    @ringar.elastic.run
    def train(state: ringar.elastic.ObjectState) -> None:
        while True:
            ringar.barrier()
            state.commit()
            if os.environ["RINGAR_RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)

    train(ringar.elastic.ObjectState(step=0))


def waits() -> None:
    ringar.init()
    signal.pause()


@pytest.mark.slow
def test_errors() -> None:
    with pytest.raises(KeyError, match="no such word"):
        ringar.run(fails, np=2, min_np=2)
    options = ["--elastic-timeout", "1"]
    text = r"expected at least 2 ranks \(--min-np\), received 1 for 1 s \(--elastic-timeout\)"
    with pytest.raises(RankError, match=text):
        ringar.run(leaves_too_few, np=2, min_np=2, options=options)
    with pytest.raises(DeadlineError, match="expected the elastic job to end within 1 s"):
        ringar.run(waits, np=2, min_np=2, timeout=1)
    with pytest.raises(ValueError, match="--max-np: expected --min-np"):
        ringar.run(fails, np=2, max_np=3)
