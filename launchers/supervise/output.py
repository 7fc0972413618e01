"""Pass the output of the ranks to the screen: whole lines, each with its rank in front.

A `Stream` follows one stream (stdout or stderr) of one rank and passes complete lines to a
`Screen`, one of the two streams of the launcher itself. Rank 0 may also have an unfinished line on
the screen: the progress bar that it draws again after each carriage return, or a prompt. On a
terminal, a line of another rank then goes above it; elsewhere it ends the unfinished line and takes
the next one.
"""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Callable
from typing import BinaryIO

from ringar.launchers.supervise import clock

#: Bytes that wait for the screen before the ranks have to wait too.
BACKLOG = 1 << 20
#: Seconds after which an unfinished line of rank 0, most likely a prompt, is shown.
PROMPT_DELAY = 0.2
#: An unfinished line longer than this is cut.
_LONGEST_LINE = 1 << 16
_CHUNK = 4096  # bytes that a ready pipe takes without blocking (PIPE_BUF)
_TAIL_LINES = 40
_LARGEST_PIPE = 1 << 21  # bytes; above the default of /proc/sys/fs/pipe-max-size


class Screen:
    """One output of the launcher, which is written without blocking."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.broken = False
        self.lost_bytes = 0  # bytes that could not be written
        self.limit: int | None = None  # of the bytes that wait; more are lost
        self.error: OSError | None = None  # the last one, of a full disk, say
        self.has_warned = False  # the caller has told of it
        self._terminal = os.isatty(fd)
        self._waiting = bytearray()
        self._open: Stream | None = None
        self._column_zero = True

    @property
    def waiting(self) -> int:
        """The number of bytes that have not been written yet."""
        return len(self._waiting)

    def write_some(self) -> None:
        """Write some bytes, whole lines if possible; call it when the descriptor is ready.

        The reader of the pipe may mix the output of other ranks in between two writes.
        """
        end = self._waiting.rfind(b"\n", 0, _CHUNK) + 1 or _CHUNK
        try:
            count = os.write(self.fd, self._waiting[:end])
        except BlockingIOError:
            return
        except OSError as error:
            # The caller decides whether the job goes on without a reader.
            self.broken = error.errno in (errno.EPIPE, errno.EIO, errno.EBADF)
            self.error = error
            self.drop()
            return
        del self._waiting[:count]

    def drop(self) -> None:
        """Count the bytes that wait as lost."""
        self.lost_bytes += len(self._waiting)
        self._waiting.clear()

    def put(self, data: bytes) -> None:
        """Append bytes as they are."""
        if self.broken or (self.limit is not None and self.waiting > self.limit):
            self.lost_bytes += len(data)
        elif data:
            self._waiting += data
            self._column_zero = data[-1:] in (b"\n", b"\r")

    def line(self, text: bytes) -> None:
        """Append a line, given without its end, above or instead of an unfinished one."""
        stream = self._open
        if stream is None:
            self.put((b"" if self._column_zero else b"\n") + text + b"\n")
        elif self._terminal:
            self.put(b"\r\x1b[K" + text + b"\n" + stream.redrawn())
        else:
            self.release()
            self.put(text + b"\n")

    def message(self, text: str) -> None:
        """Append a message of the launcher itself."""
        for line in text.splitlines():
            self.line(b"ringarrun: " + line.encode(errors="replace"))

    def owned_by(self, stream: Stream) -> bool:
        """Return whether the unfinished line on this screen belongs to `stream`."""
        return self._open is stream

    def take(self, stream: Stream) -> None:
        """Begin an unfinished line of `stream`, ending the one that is there."""
        self.release()
        if not self._column_zero:
            self.put(b"\n")
        self._open = stream

    def release(self) -> None:
        """End the unfinished line, if there is one."""
        if self._open is not None:
            self._open = None
            self.put(b"\n")


def screens() -> tuple[Screen, Screen]:
    """Return the screens for standard output and error; the same one twice if both are one file."""
    out = Screen(1)
    first, second = os.fstat(1), os.fstat(2)
    same = (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
    return out, out if same else Screen(2)


class Stream:
    """One stream of one rank, from its pipe to the screen and to its file.

    Args:
        fd: the reading end of the pipe; closed by this object.
        screen: where the output is shown.
        prefix: the beginning of each line.
        live: whether unfinished lines are shown (rank 0).
        raw: pass everything on as it comes, unchanged (a job of one rank without prefix).
        copy: a file that also gets all of it, unchanged.
        takes: called with each complete line; a line for which it returns True is not shown.
        keeps: the beginning of lines that are never cut.
    """

    def __init__(
        self,
        fd: int,
        screen: Screen,
        *,
        prefix: bytes = b"",
        live: bool = False,
        raw: bool = False,
        copy: BinaryIO | None = None,
        takes: Callable[[bytes], bool] | None = None,
        keeps: bytes | None = None,
    ) -> None:
        self.fd = fd
        self.screen = screen
        self.closed = False
        self.copy_error: OSError | None = None
        self._prefix, self._live, self._raw, self._copy = prefix, live, raw, copy
        self._takes, self._keeps = takes, keeps
        self._line = bytearray()  # the unfinished line
        self._shown = 0  # how much of it is on the screen
        self._since = 0.0  # when its first part came
        self._tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        os.set_blocking(fd, False)

    def read_some(self) -> bool:
        """Read from the pipe, 64 KiB at most; return whether it may hold more."""
        if self.closed:
            return False
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._keep_copy(data)
        self._feed(data)
        return True

    def drain(self) -> None:
        """Read all that the pipe holds now; background processes may go on writing to it."""
        for _ in range(_LARGEST_PIPE >> 16):
            if not self.read_some():
                return

    def close(self) -> None:
        """Show the unfinished line, and close the pipe and the file."""
        if self.closed:
            return
        self.closed = True
        if self._line:
            self._finish_line()
        os.close(self.fd)
        if self._copy is not None:
            self._copy.close()

    def prompt_due(self) -> float | None:
        """Return the time (`clock.now()`) to show the unfinished line at, or None."""
        if self._live and not self._raw and len(self._line) > self._shown and not self.closed:
            return self._since + PROMPT_DELAY
        return None

    def show_prompt(self) -> None:
        """Show the unfinished line."""
        if len(self._line) > self._shown:
            self._show_unfinished()

    def tail(self) -> list[bytes]:
        """Return the last lines, 40 at most."""
        return list(self._tail)

    def redrawn(self) -> bytes:
        """Return the unfinished line as the screen shows it."""
        return self._prefix + last_frame(self._line[: self._shown])

    def _keep_copy(self, data: bytes) -> None:
        if self._copy is None:
            return
        try:
            while data:
                data = data[self._copy.write(data) :]
        except OSError as error:  # a full disk must not end a training run
            self.copy_error, self._copy = error, None

    def _feed(self, data: bytes) -> None:
        if self._raw:
            self.screen.put(data)
        *lines, rest = data.split(b"\n")
        for part in lines:
            self._line += part
            self._finish_line()
        if not rest:
            return
        if not self._line:
            self._since = clock.now()
        self._line += rest
        if self._live and b"\r" in rest and not self._raw:
            self._show_unfinished()
        self._cut()

    def _finish_line(self) -> None:
        line, shown = bytes(self._line), self._shown
        self._line.clear()
        self._shown = 0
        if self._takes is not None and self._takes(line):
            return
        frame = last_frame(line)
        self._tail.append(frame)
        if self._raw:
            return
        if not shown:
            self.screen.line(self._prefix + frame)
        elif self.screen.owned_by(self):
            self.screen.put(self._frames(line[shown:].removesuffix(b"\r")))
            self.screen.release()
        elif rest := last_frame(line[shown:]):
            # Another line has ended this one on the screen; if nothing more came, it is complete.
            self.screen.line(self._prefix + rest)

    def _show_unfinished(self) -> None:
        if self.screen.owned_by(self):
            self.screen.put(self._frames(bytes(self._line[self._shown :])))
        elif frame := last_frame(self._line[self._shown :]):
            self.screen.take(self)
            self.screen.put(self._prefix + frame)
        self._shown = len(self._line)
        self._since = clock.now()

    def _frames(self, data: bytes) -> bytes:
        # After each carriage return the cursor stands where the prefix is.
        return data.replace(b"\r", b"\r" + self._prefix)

    def _cut(self) -> None:
        """Keep the unfinished line short: drop overdrawn frames, or end the line."""
        if len(self._line) <= _LONGEST_LINE:
            return
        if self._keeps is not None and self._line.startswith(self._keeps):
            return
        frame = last_frame(self._line)
        if len(frame) > _LONGEST_LINE // 2:
            self._finish_line()
        else:
            self._shown = len(frame) if self._shown else 0
            self._line[:] = frame


def last_frame(line: bytes | bytearray) -> bytes:
    """Return the part of a line that a terminal shows: all after the last carriage return.

    Backspaces at either end only move the cursor and are left out.
    """
    for frame in reversed(re.split(rb"\r", bytes(line))):
        if text := frame.strip(b"\b"):
            return text
    return b""
