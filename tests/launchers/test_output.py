from __future__ import annotations

import os
import pty
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringar.launchers.supervise import output
from ringar.launchers.supervise.output import Screen, Stream, last_frame


class Rank:
    """A stream of one rank and the end of its pipe that the rank writes to."""

    def __init__(self, rank: int, screen: Screen, raw: bool = False) -> None:
        reader, self.writer = os.pipe()
        prefix = b"[%d] " % rank
        self.stream = Stream(reader, screen, prefix=prefix, live=rank == 0, raw=raw)

    def write(self, data: bytes) -> None:
        os.write(self.writer, data)
        self.stream.read_some()

    def close(self) -> None:
        os.close(self.writer)
        self.stream.drain()


def shown(screen: Screen) -> bytes:
    """What the screen has been given since the last call."""
    data = bytes(screen._waiting)
    screen._waiting.clear()
    return data


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[Screen]:
    fd = os.open(tmp_path / "out", os.O_CREAT | os.O_RDWR)
    yield Screen(fd)
    os.close(fd)


@pytest.fixture
def terminal() -> Iterator[Screen]:
    leader, fd = pty.openpty()
    yield Screen(fd)
    os.close(fd)
    os.close(leader)


@pytest.mark.parametrize("rank", [0, 1])
def test_lines_are_shown_whole(screen: Screen, rank: int) -> None:
    writer = Rank(rank, screen)
    writer.write(b"on")
    assert shown(screen) == b""
    writer.write(b"e\ntwo\n\nthr")
    assert shown(screen) == b"[%d] one\n[%d] two\n[%d] \n" % (rank, rank, rank)
    writer.write(b"ee")
    writer.close()
    assert shown(screen) == b"[%d] three\n" % rank


def test_lines_of_ranks_do_not_mix(screen: Screen) -> None:
    zero, peer = Rank(0, screen), Rank(1, screen)
    zero.write(b"zer")
    peer.write(b"one")
    zero.write(b"o\n")
    peer.write(b"!\n")
    assert shown(screen) == b"[0] zero\n[1] one!\n"


def test_progress_bar_of_rank_0_is_drawn_at_once(screen: Screen) -> None:
    zero = Rank(0, screen)
    zero.write(b"\r1/3")
    assert shown(screen) == b"[0] 1/3"
    zero.write(b"\b\b\b\r2/3")
    assert shown(screen) == b"\b\b\b\r[0] 2/3"
    zero.write(b"\r3/3\n")
    assert shown(screen) == b"\r[0] 3/3\n"
    zero.write(b"done\n")
    assert shown(screen) == b"[0] done\n"


def test_progress_bars_of_other_ranks_leave_their_last_state(screen: Screen) -> None:
    peer = Rank(1, screen)
    peer.write(b"\r1/3")
    peer.write(b"\b\b\b\r2/3\b\b\b\r3/3")
    assert shown(screen) == b""
    peer.write(b"\n")
    assert shown(screen) == b"[1] 3/3\n"


def test_line_above_the_progress_bar_in_a_file(screen: Screen) -> None:
    zero, peer = Rank(0, screen), Rank(1, screen)
    zero.write(b"\r1/2")
    peer.write(b"hello\n")
    assert shown(screen) == b"[0] 1/2\n[1] hello\n"
    zero.write(b"\b\b\b\r2/2")
    assert shown(screen) == b"[0] 2/2"
    peer.write(b"again\n")
    zero.write(b"\n")  # the line has been ended already
    assert shown(screen) == b"\n[1] again\n"


def test_line_above_the_progress_bar_on_a_terminal(terminal: Screen) -> None:
    zero, peer = Rank(0, terminal), Rank(1, terminal)
    zero.write(b"\r1/2")
    shown(terminal)
    peer.write(b"hello\n")
    assert shown(terminal) == b"\r\x1b[K[1] hello\n[0] 1/2"
    zero.write(b"\r2/2")
    assert shown(terminal) == b"\r[0] 2/2"


def test_windows_line_ends(screen: Screen) -> None:
    zero, peer = Rank(0, screen), Rank(1, screen)
    peer.write(b"one\r\n")
    zero.write(b"zero\r\n")
    assert shown(screen) == b"[1] one\n[0] zero\n"


def test_prompt_of_rank_0_appears_after_a_moment(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "PROMPT_DELAY", 0.0)
    zero, peer = Rank(0, screen), Rank(1, screen)
    zero.write(b"(Pdb) ")
    peer.write(b"waiting ")
    deadline = zero.stream.prompt_due()
    assert deadline is not None
    assert deadline <= time.monotonic()
    assert peer.stream.prompt_due() is None
    zero.stream.show_prompt()
    assert shown(screen) == b"[0] (Pdb) "
    assert zero.stream.prompt_due() is None
    zero.write(b"2\n")
    assert shown(screen) == b"2\n"


def test_a_lone_rank_is_passed_through(screen: Screen) -> None:
    zero = Rank(0, screen, raw=True)
    zero.write(b"a\r\x00\xff b\r\n")
    zero.write(b"c")
    zero.close()
    assert shown(screen) == b"a\r\x00\xff b\r\nc"
    screen.message("bye")
    assert shown(screen) == b"\nringarrun: bye\n"
    assert zero.stream.tail() == [b"\x00\xff b", b"c"]


def test_endless_progress_takes_no_memory(screen: Screen) -> None:
    for rank in (0, 1):
        writer = Rank(rank, screen)
        for _ in range(200):
            writer.write(b"\r" + b"x" * 1000)
        assert len(writer.stream._line) <= 1 << 17
        writer.write(b"\n")
        assert shown(screen).endswith(b"[%d] " % rank + b"x" * 1000 + b"\n" if rank else b"x\n")


def test_endless_line_is_cut_without_a_loss(screen: Screen) -> None:
    peer = Rank(1, screen)
    text = b"".join(b"%d," % i for i in range(60_000))
    for begin in range(0, len(text), 1000):
        peer.write(text[begin : begin + 1000])
    peer.write(b"\n")
    pieces = shown(screen).splitlines()
    assert len(pieces) == 1 + len(text) // output._LONGEST_LINE
    assert all(piece.startswith(b"[1] ") for piece in pieces)
    assert b"".join(piece.removeprefix(b"[1] ") for piece in pieces) == text


def test_lines_that_programs_read_are_not_cut(screen: Screen) -> None:
    lines: list[bytes] = []
    reader, writer = os.pipe()

    def take(line: bytes) -> bool:
        lines.append(line)
        return True

    stream = Stream(reader, screen, takes=take, keeps=b"ANSWER ")
    text = b"ANSWER " + b"x" * 3 * output._LONGEST_LINE
    for begin in range(0, len(text), 1000):
        os.write(writer, text[begin : begin + 1000])
        stream.read_some()
    os.write(writer, b"\n")
    stream.read_some()
    os.close(writer)
    stream.close()
    assert lines == [text]


def test_only_a_longer_line_is_cut(screen: Screen) -> None:
    peer = Rank(1, screen)
    for _ in range(output._LONGEST_LINE // 4096):
        peer.write(b"x" * 4096)
    assert shown(screen) == b""
    peer.write(b"x")
    assert shown(screen) == b"[1] " + b"x" * (output._LONGEST_LINE + 1) + b"\n"


def test_the_tail_is_the_last_forty_lines(screen: Screen) -> None:
    peer = Rank(1, screen)
    peer.write(b"".join(b"%d\n" % i for i in range(100)))
    assert peer.stream.tail() == [b"%d" % i for i in range(60, 100)]


def test_a_screen_that_nobody_reads_is_broken() -> None:
    reader, writer = os.pipe()
    screen = Screen(writer)
    os.close(reader)
    screen.put(b"hello")
    screen.write_some()
    assert screen.broken
    screen.put(b"more")
    assert screen.waiting == 0
    os.close(writer)


@pytest.mark.parametrize(
    ("line", "frame"),
    [
        (b"", b""),
        (b"a", b"a"),
        (b"a\r", b"a"),
        (b"a\rb", b"b"),
        (b"a\rb\b\b\r", b"b"),
        (b"\r\r", b""),
    ],
)
def test_last_frame(line: bytes, frame: bytes) -> None:
    assert last_frame(line) == frame
