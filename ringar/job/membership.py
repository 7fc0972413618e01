"""The membership of a rank in an elastic job: how it meets the others, and hears of changes.

Ranks come and go, so no environment variable can tell a rank its place. The launcher keeps the list
of living processes, and makes *worlds* of them (launchers/elastic/next_world.py).
A world is immutable: a number, its *generation*, the ranks in it, and a shared segment of its own.
`ringar.init()` enters a world and `ringar.shutdown()` leaves it, in the same process any number of
times.

Each process has a socket to the launcher (SOCK_SEQPACKET: a message is a packet, of JSON):

    process -> launcher   enter    wait for a world; the launcher answers with `world` or `end`.
                                   After a meeting that failed it says whom it cannot reach
                          started  the world's ranks have met: `ringar.init()` has returned
                          leave    this process will not come back
    launcher -> process   world    generation, rank and size; the segment of the host's ranks
                                   travels with it, and the file with all hosts if there are more
                          lost     a rank of the world is gone before all have met: enter again
                          change   other ranks wait to join: enter again at the next commit
                          end      there will be no further world, and why; "": all is done

A process that starts while the others train waits in `ringar.init()` until they have let it in. Its
rank and the number of ranks then hold. Collectives that it runs before it shares the others' state
meet those of their reset callbacks in the new world.

In a job of MPI that outlives ranks there is no such launcher, and no rank can join: see
`ringar.job.mpi_survivors`.

Nothing here needs TensorFlow or NumPy: the launcher uses `send` and `receive`, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringar.errors import RankError
from ringar.job import inherited

#: The descriptor of the socket; where it is set, ranks may change.
VARIABLE = "RINGAR_RENDEZVOUS_FD"
#: The folder in which commits are kept, where the user has asked.
FOLDER_VARIABLE = "RINGAR_ELASTIC_DIR"
#: 1: the ranks of a job of MPI go on without those that are lost; the user sets it.
BY_MPI_VARIABLE = "RINGAR_ELASTIC"

_LONGEST = 1 << 16


@dataclass(frozen=True)
class World:
    """Name the place of this process in a world.

    Attributes:
        generation: the number of the world.
        rank: the number of this process in it.
        size: the number of its ranks.
        segment: the descriptor of its shared segment, -1 for none.
        hosts: the descriptor of the file that `tcp.apply_world` reads, -1 for none.
        news: a descriptor that is readable when a rank is lost during the start.
    """

    generation: int
    rank: int
    size: int
    segment: int
    hosts: int
    news: int


class _Connection:
    """The socket to the launcher, and the news that it has brought."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # programs that a rank starts are no ranks
        self.socket = socket.socket(fileno=descriptor)
        self.change = False

    def enter(self, unreached: Sequence[int]) -> World:
        self.change = False
        send(self.socket, {"kind": "enter", "unreached": list(unreached)})
        while True:
            message, files = receive(self.socket)
            if message["kind"] == "world":
                place = {name: message[name] for name in ("generation", "rank", "size")}
                segment, hosts = [*files, -1, -1][:2]
                return World(**place, segment=segment, hosts=hosts, news=self.socket.fileno())
            if message["kind"] == "end" and not message["why"]:
                raise SystemExit(0)  # the others have come to their end without this process
            if message["kind"] == "end":
                raise RankError(f"the elastic job ends: {message['why']}")

    def look(self) -> None:
        """Read the news that has arrived."""
        self.socket.setblocking(False)
        try:
            while True:
                self.change |= receive(self.socket)[0]["kind"] == "change"
        except (BlockingIOError, EOFError):  # the launcher's end ends this process, too
            return
        finally:
            self.socket.setblocking(True)


_connection: _Connection | None = None
_world: World | None = None


def is_elastic() -> bool:
    """Return whether the ranks of this job may change."""
    return is_by_launcher() or is_by_mpi()


def is_by_launcher() -> bool:
    """Return whether ringarrun makes worlds of the ranks that live."""
    return _connection is not None or VARIABLE in os.environ


def is_by_mpi() -> bool:
    """Return whether MPI tells which ranks live, as the user has asked (`mpi_survivors`)."""
    return os.environ.get(BY_MPI_VARIABLE) == "1" and "RINGAR_RANK" not in os.environ


def enter(unreached: Sequence[int] = ()) -> World:
    """Wait until the launcher has made a world with this process in it; return the place there.

    Args:
        unreached: ranks of the last world, in which the ranks have not met, whose hosts give this
            process no answer.

    Raises:
        SystemExit: there will be no further world, since the others are done.
        RankError: there will be no further world; the message says why.
        ConnectionError: the launcher is gone.
    """
    global _connection, _world
    if _connection is None:
        descriptor = inherited.socket(VARIABLE, os.environ)
        del os.environ[VARIABLE]
        _connection = _Connection(descriptor)
    try:
        _world = _connection.enter(unreached)
    except (EOFError, OSError) as error:
        raise ConnectionError(
            "expected ringarrun to make a world of the ranks that live; received the end of "
            "ringarrun. Start the job again."
        ) from error
    return _world


def last_place() -> tuple[int, int]:
    """Return the generation of this process' last world, and its rank there."""
    return (0, 0) if _world is None else (_world.generation, _world.rank)


def started() -> None:
    """Tell the launcher that this process has met the others of its world."""
    if _connection is not None:
        with contextlib.suppress(OSError):
            send(_connection.socket, {"kind": "started"})


def close_files() -> None:
    """Close the files of the world: the library has its own descriptors."""
    for descriptor in () if _world is None else (_world.segment, _world.hosts):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def leave() -> None:
    """Tell the launcher that this process ends on purpose."""
    if _connection is not None:
        with contextlib.suppress(OSError):
            send(_connection.socket, {"kind": "leave"})


def is_change_due() -> bool:
    """Return whether other ranks wait to join. Costs a system call until it is true."""
    if _connection is None:
        return False
    if not _connection.change:
        _connection.look()
    return _connection.change


def send(to: socket.socket, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
    """Send a message, and file descriptors with it."""
    socket.send_fds(to, [json.dumps(message).encode()], list(files))


def receive(source: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the next message, and the file descriptors that came with it.

    Raises:
        EOFError: the other side has closed its end.
        BlockingIOError: there is none, and the socket does not block.
    """
    data, files, _, _ = socket.recv_fds(source, _LONGEST, 2, socket.MSG_CMSG_CLOEXEC)
    if not data:
        raise EOFError
    message: dict[str, Any] = json.loads(data)
    return message, files
