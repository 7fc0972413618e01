"""A rank that ends, or does not come, while another one sends to it or waits for its messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.outcomes import Outcomes, run_scenarios
from tests.plugin import fast_if

pytestmark = pytest.mark.job

COUNT = 20  # messages that went well, in scripts/messages.py
DIED = "rank 1 has died: its process is gone (killed or crashed; see its output)"
LEFT = "rank 1 has left: it called ringar.shutdown() or its program ended"


def run(folder: Path, how: str, kind: str) -> Outcomes:
    script = Path(__file__).parent / "scripts" / "messages.py"
    return run_scenarios(3, script, folder, args=[how, kind], deadline=60)


def done(outcomes: Outcomes) -> int:
    """How many messages rank 0 had sent or received before it failed."""
    return int(outcomes.of("count", [0])[0].message)


@pytest.mark.parametrize("kind", [fast_if(False, "eager"), "function"])
def test_the_sender_is_killed(tmp_path: Path, kind: str) -> None:
    """All that it has sent is received; a rank that waits for the receiver learns of it, too."""
    outcomes = run(tmp_path, "sender", kind)
    outcomes.job.check(137)
    assert done(outcomes) == COUNT
    first, second = outcomes.of("loop", [0, 2])
    first.expect("AbortedError", 'rank 0 | recv "loop" from rank 1 of float32[?,1000]', DIED)
    second.expect("AbortedError", 'rank 2 | recv "loop" from rank 0', "rank 0 has given up: rank 0")


@pytest.mark.parametrize(
    ("kind", "error"), [("numpy", "PeerLostError"), fast_if(False, "function", "AbortedError")]
)
def test_the_receiver_is_killed(tmp_path: Path, kind: str, error: str) -> None:
    """The sender notices when both buffers are full."""
    outcomes = run(tmp_path, "receiver", kind)
    outcomes.job.check(137)
    assert done(outcomes) == COUNT + 2
    outcomes.of("loop", [0])[0].expect(error, 'rank 0 | send "loop" to rank 1 of float32', DIED)


@pytest.mark.slow
def test_the_sender_leaves(tmp_path: Path) -> None:
    outcomes = run(tmp_path, "leaves", "eager")
    assert done(outcomes) == COUNT
    outcomes.of("loop", [0])[0].expect("AbortedError", 'rank 0 | recv "loop" from rank 1', LEFT)


@pytest.mark.parametrize("kind", ["eager", fast_if(False, "function")])
def test_the_sender_does_not_come(tmp_path: Path, kind: str) -> None:
    outcomes = run(tmp_path, "deadline", kind)
    outcomes.of("loop", [0])[0].expect(
        "DeadlineExceededError",
        'rank 0 | recv "loop" from rank 1 of float32[?,1000]: expected every rank within the '
        "deadline of 1.5 s, still waiting for rank 1",
    )
