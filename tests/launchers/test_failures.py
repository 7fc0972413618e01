from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ringar.launchers.supervise import failures
from ringar.launchers.supervise.ranks import ExitStatus
from tests.plugin.jobs import ROOT


def a_rank(
    number: int, code: int = 1, words: tuple[bytes, ...] = (), is_stopped: bool = False
) -> Any:
    """A rank as far as the report needs it."""
    return SimpleNamespace(
        number=number,
        status=ExitStatus(code=code),
        stderr=SimpleNamespace(tail=lambda: list(words)),
        is_stopped=is_stopped,
    )


LOSS = (b"Traceback", b"ringar.errors.PeerLostError: rank 0 | rank 1 is gone")
LOSS_IN_TENSORFLOW = (b"tensorflow.python.framework.errors_impl.AbortedError: rank 2 | ...",)


def test_cause_is_the_first_that_does_not_report_a_lost_peer() -> None:
    first, second, third = a_rank(0, words=LOSS), a_rank(2, words=LOSS_IN_TENSORFLOW), a_rank(1)
    assert failures.cause([first, second, third]) is third
    assert failures.cause([third, first]) is third
    assert failures.cause([second, first]) is second


@pytest.mark.parametrize(
    ("numbers", "names"),
    [
        ([1], "rank 1 was"),
        ([1, 2], "ranks 1, 2 were"),
        ([1, 2, 3], "ranks 1 to 3 were"),
        ([1, 3, 4, 5, 7], "ranks 1, 3 to 5, 7 were"),
    ],
)
def test_ranks_are_listed_shortly(numbers: list[int], names: str) -> None:
    first = a_rank(0, 4)
    ranks = [first, *(a_rank(number, is_stopped=True) for number in numbers)]
    text, _ = failures.report(ranks, [first])
    assert text == f"rank 0 of {len(ranks)} failed with exit code 4; {names} stopped"


def test_last_words_are_those_of_the_cause() -> None:
    first, other = a_rank(3, words=(b"a", b"b")), a_rank(0, words=LOSS)
    _, tail = failures.report([other, first], [other, first])
    assert tail[1:] == [b"[3] a", b"[3] b"]
    assert failures.report([first], [first])[1] == []


INTERNAL = b"tensorflow.python.framework.errors_impl.InternalError: Graph execution error:"
LOSS_IN_A_GRAPH = (
    b"tensorflow.python.framework.errors_impl.AbortedError: Graph execution error:",
    b"Detected at node RingarAllreduce",
    b'rank 2 | allreduce "loss": expected all ranks to take part, but rank 1 is gone',
)


@pytest.mark.parametrize(
    ("words", "heading"),
    [
        (LOSS, b"peerlosterror"),
        (LOSS_IN_A_GRAPH, b"peerlosterror"),
        ((INTERNAL, b"rank 0 | expected all ranks to take part, but"), b"peerlosterror"),
        ((INTERNAL, b"rank 0 | expected every rank within the deadline of 1 s"), b"deadlineerror"),
        ((INTERNAL, b"rank 0 | NCCL has failed"), b"error-classes"),
        ((b"ringar.errors.NotInitializedError: ringar is not",), b"notinitializederror"),
        ((*LOSS, b"ringar.errors.MismatchError: rank 0 | allreduce"), b"mismatcherror"),
        ((b"tensorflow.python.framework.errors_impl.AbortedError: the queue is closed",), None),
        ((b"ValueError: rank 0 | boom",), None),
    ],
)
def test_an_error_of_ringar_names_its_place_in_the_guide(
    words: tuple[bytes, ...], heading: bytes | None
) -> None:
    first, other = a_rank(0, words=words), a_rank(1)
    _, tail = failures.report([first, other], [first])
    lines = [line for line in tail if line.startswith(b"ringarrun: see")]
    assert lines == ([b"ringarrun: see docs/troubleshooting.md#" + heading] if heading else [])
    assert not lines or tail[-1] == lines[0]


def test_the_guide_has_the_headings_that_reports_name() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text().lower()
    for heading in {*failures._HEADINGS.values(), *failures._PHRASES.values()}:
        assert f"## {heading.replace('-', ' ')}\n" in page


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (ExitStatus(), 0, "exit code 0"),
        (ExitStatus(code=7), 7, "exit code 7"),
        (ExitStatus(signal=9), 137, "signal 9 (SIGKILL)"),
        (ExitStatus(signal=64), 192, "signal 64"),
    ],
)
def test_exit_status(status: ExitStatus, code: int, text: str) -> None:
    assert status.exit_code == code
    assert status.ok == (code == 0)
    assert str(status).startswith(text)
