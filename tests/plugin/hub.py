"""Exchange of small objects between the ranks of a test run, without ringar.

The tests must detect that ringar is broken, so the ranks agree without it: by a socket from each
rank to rank 0, in the abstract namespace of Unix sockets, which leaves no file behind. The death of
a rank ends its stream at once. That namespace belongs to a network namespace; for ranks on several
hosts of tests/hosts, a file's path is the name instead.

One exchange is a round: every rank sends a message with a tag, rank 0 waits until it has one from
each and, if all tags are equal, answers each with the list. A rank whose test has failed skips the
test's own rounds and sends its report instead. Ranks that wait in such a round get a `PeerLeft`,
and join the report's round.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple


class Message(NamedTuple):
    """Hold a rank's contribution to a round; a failed test skips `optional` rounds."""

    tag: str
    optional: bool
    value: object


class PeerGone(Exception):
    """Report that a rank ended or is at another test: the run cannot go on."""


class PeerLeft(AssertionError):
    """Report that a rank failed and left the test while this one waited for it."""


class Hub:
    """Connect this rank to the others; every rank makes a hub with the same `name`."""

    def __init__(self, rank: int, size: int, name: str, timeout: float = 120.0) -> None:
        self.rank = rank
        self.size = size
        self.waiting = False
        address = name if "/" in name else f"\0ringar-tests-{name}"
        if rank == 0:
            self._peers = _accept(address, size, timeout)
        else:
            self._peers = {0: _connect(address, rank, timeout)}
        self._pending: dict[int, Message] = {}

    def exchange(self, tag: str, value: object, *, optional: bool = False) -> list[Any]:
        """Return every rank's value, in rank order.

        Raises:
            PeerLeft: a rank has skipped this optional round for its report.
            PeerGone: a rank ended or is in another round.
        """
        message = Message(tag, optional, value)
        self.waiting = True
        try:
            return self._serve(message) if self.rank == 0 else self._ask(message)
        except (EOFError, OSError) as error:
            raise PeerGone(f"rank 0 ended while this rank was at {tag}") from error
        finally:
            self.waiting = False

    def _ask(self, message: Message) -> list[object]:
        server = self._peers[0]
        server.send(message)
        answer = server.recv()
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    def _serve(self, message: Message) -> list[object]:
        self._pending[0] = message
        while True:
            self._receive()
            if len({m.tag for m in self._pending.values()}) == 1:
                answer = [self._pending.pop(r).value for r in range(self.size)]
                for peer in self._peers.values():
                    peer.send(answer)
                return answer
            self._dismiss()

    def _receive(self) -> None:
        """Wait for a message from every rank."""
        while ranks_of := {self._peers[r]: r for r in self._peers if r not in self._pending}:
            for ready in wait(list(ranks_of)):
                assert isinstance(ready, Connection)
                rank = ranks_of[ready]
                try:
                    self._pending[rank] = ready.recv()
                except (EOFError, OSError) as error:
                    raise PeerGone(f"rank {rank} ended") from error

    def _dismiss(self) -> None:
        """End the optional rounds in which ranks wait for one that has left, or the whole run."""
        places = "; ".join(f"rank {r} is at {m.tag}" for r, m in sorted(self._pending.items()))
        optional = [r for r, m in self._pending.items() if m.optional]
        error: Exception
        if 0 < len(optional) < self.size:
            error, leaving = PeerLeft(f"a rank left the test: {places}"), optional
        else:
            error, leaving = PeerGone(f"the ranks are out of step: {places}"), list(self._pending)
        for r in leaving:
            del self._pending[r]
            if r != 0:
                self._peers[r].send(error)
        if 0 in leaving:
            raise error

    def close(self, value: object = None) -> Any:
        """Send `value` from rank 0 to the others and disconnect; return rank 0's value."""
        if self.rank == 0:
            for peer in self._peers.values():
                with contextlib.suppress(OSError):
                    peer.send(value)
                peer.close()
            return value
        try:
            return self._peers[0].recv()
        except (EOFError, OSError):
            return None
        finally:
            self._peers[0].close()


def _accept(address: str, size: int, timeout: float) -> dict[int, Connection]:
    peers: dict[int, Connection] = {}
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen(size)
        server.settimeout(timeout)
        while len(peers) < size - 1:
            try:
                connection = Connection(server.accept()[0].detach())
            except TimeoutError:
                absentees = sorted(set(range(1, size)) - set(peers))
                raise PeerGone(f"ranks {absentees} did not come in {timeout} s") from None
            peers[connection.recv()] = connection
    if not address.startswith("\0"):
        os.unlink(address)
    return peers


def _connect(address: str, rank: int, timeout: float) -> Connection:
    give_up = time.monotonic() + timeout
    while True:
        client = socket.socket(socket.AF_UNIX)
        try:
            client.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            client.close()
            if time.monotonic() > give_up:
                raise PeerGone(f"rank 0 did not come in {timeout} s") from None
            time.sleep(0.02)
        else:
            connection = Connection(client.detach())
            connection.send(rank)
            return connection
