"""A rank that ends while the others count on it: in loops of large allreduces, however they run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.outcomes import Outcomes, run_scenarios
from tests.plugin import fast_if, run_job
from tests.plugin.jobs import left_in_shared_memory

pytestmark = pytest.mark.job

OTHERS = [0, 2]
DIED = "rank 1 has died: its process is gone (killed or crashed; see its output)"
LEFT = "rank 1 has left: it called ringar.shutdown() or its program ended"


def end_rank_1(folder: Path, how: str, loop: str, code: int, verdict: str) -> Outcomes:
    """Runs the job, checks how it ends and that it leaves nothing, and returns what ranks saw."""
    outcomes = run_scenarios(
        3, Path(__file__).parent / "scripts" / "death.py", folder, args=[how, loop], deadline=100
    )
    outcomes.job.check(code)
    assert not left_in_shared_memory()
    assert verdict in outcomes.job.stderr.splitlines()[-1], outcomes.job
    return outcomes


def expect_loss(outcomes: Outcomes, kind: str, text: str) -> None:
    for outcome in outcomes.of("loop", OTHERS):
        outcome.expect(kind, f"rank {outcome.rank} | allreduce ", text)


@pytest.mark.parametrize(
    ("loop", "kind"),
    [
        ("numpy", "PeerLostError"),
        ("compiled", "InternalError"),
        fast_if(False, "fit", "AbortedError"),
    ],
)
def test_killed(tmp_path: Path, loop: str, kind: str) -> None:
    verdict = "ringarrun: rank 1 of 3 was killed by signal 9 (SIGKILL)"
    outcomes = end_rank_1(tmp_path, "SIGKILL", loop, 137, verdict)
    expect_loss(outcomes, kind, DIED)


@pytest.mark.parametrize(
    ("loop", "kind"),
    [
        ("compiled fit", "InternalError"),
        fast_if(False, "function", "AbortedError"),
    ],
)
def test_thrown(tmp_path: Path, loop: str, kind: str) -> None:
    """Another rank ends first, and still rank 1 is named, with its exception last."""
    verdict = "ringarrun: rank 1 of 3 failed with exit code 1; rank"
    outcomes = end_rank_1(tmp_path, "throw", loop, 1, verdict)
    expect_loss(outcomes, kind, LEFT)
    assert outcomes.job.stderr.splitlines()[-2] == "[1] ValueError: rank 1 has a bug"


@pytest.mark.slow
def test_exited_at_once(tmp_path: Path) -> None:
    """As by os._exit, or an exit in C: nobody says goodbye."""
    verdict = "ringarrun: rank 1 of 3 failed with exit code 7"
    outcomes = end_rank_1(tmp_path, "exit", "function", 7, verdict)
    expect_loss(outcomes, "AbortedError", DIED)


def test_returned_early(tmp_path: Path) -> None:
    """Rank 1 has ended well, so the others are those that fail; they say because of whom."""
    outcomes = end_rank_1(tmp_path, "return", "fit", 1, "of 3 failed with exit code 1; rank ")
    expect_loss(outcomes, "AbortedError", LEFT)
    words = outcomes.job.stderr.partition("ringarrun: the last lines")[2]
    assert LEFT in words, outcomes.job


def test_stopped_for_good(tmp_path: Path) -> None:
    """Nobody wakes it: the others give up at the deadline, and the launcher ends it with them."""
    outcomes = end_rank_1(tmp_path, "SIGSTOP", "function", 1, "of 3 failed with exit code 1")
    assert outcomes.job.stderr.splitlines()[-1].endswith(("rank 1 was stopped", "were stopped"))
    for outcome in outcomes.of("loop", OTHERS):
        texts = ["deadline of 1.5 s, still waiting for rank 1"]
        kind = "DeadlineExceededError"
        outcome.expect(kind if kind in outcome.kinds else "AbortedError", *texts)


@pytest.mark.slow
def test_more_ranks_than_cores() -> None:
    """Four, where CI has two cores: a rank that waits must leave its core to one that does not.

    `make test-ranks` does that with all tests.
    """
    source = """
    import numpy as np
    import tensorflow as tf
    import ringar

    ringar.init(deadline=20)
    for length in (1, 1000, 1_000_000):
        for _ in range(20):
            total = ringar.allreduce(np.ones(length, np.float32), ringar.Sum)
            assert total[0] == total[-1] == 4
    loop = tf.function(
        lambda x: tf.while_loop(
            lambda i, x: i < 50,
            lambda i, x: (i + 1, ringar.allreduce(x, name="x")),
            (0, x),
        )[1],
        autograph=False,
    )
    assert loop(tf.ones(100_000)).numpy().sum() == 100_000
    gathered = ringar.allgather(tf.fill([ringar.rank() + 1], ringar.rank()))
    assert gathered.numpy().tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
    print("done")
    """
    result = run_job(4, source, launcher_args=["--no-prefix"], deadline=60).check()
    assert result.stdout.split() == ["done"] * 4
