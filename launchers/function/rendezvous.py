"""The connections between the caller of `ringar.run`, or an executor, and its ranks.

The caller listens on a port. Each rank connects to it, receives functions, one after the other, and
sends the outcome of each when it has ended. Nothing is written to a disk, so that hosts need not
share one.

Both sides prove that they know the key in the rank's environment, before either unpickles anything
(the challenges of `multiprocessing.connection`). A job on this host uses the loopback interface.
Between hosts messages are not encrypted, like those of MPI.
"""

from __future__ import annotations

import abc
import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import NamedTuple, TypeVar

from ringar.launchers.plan import addresses

VARIABLE = "RINGAR_RUN"
"""Tells a rank the key, the port and the addresses of its caller."""

BY_SSH = "SSH_CONNECTION"
"""Tells a process below sshd both ends of its connection, the client's first."""

_CONNECT_TIMEOUT = 10.0  # seconds for each address

_MORE, _LAST = b"more", b"last"

Self = TypeVar("Self", bound="Meeting")


class Outcome(NamedTuple):
    """The end of the function on one rank.

    Attributes:
        trace: the traceback of its error; "" if it has returned.
        value: the pickled result or exception; empty if the exception cannot be pickled.
        place: in an elastic job the last world of this process, and its rank there.
    """

    trace: str
    value: bytes
    place: tuple[int, int] = (0, 0)


class Meeting(abc.ABC):
    """A port at which processes that know a key connect. A context; its end is that of the port.

    Args:
        hosts: the other hosts that processes come from.
        local: whether all come from this host.
    """

    def __init__(self, hosts: Sequence[str], *, local: bool) -> None:
        self._key = secrets.token_bytes(32)
        self._socket = _listening(local=local)
        usable = [] if local else _addresses(hosts)
        if self._socket.family == socket.AF_INET:
            usable = [address for address in usable if ":" not in address]
        self._addresses = [addresses.loopback()] if local else usable

    @property
    def variable(self) -> str:
        """The argument of `meet`: the key, the port, the addresses, and the login on this host."""
        port = self._socket.getsockname()[1]
        login = ",".join(os.environ.get(BY_SSH, "").split()) or "-"
        return f"{self._key.hex()} {port} {','.join(self._addresses)} {login}"

    def __enter__(self: Self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # ends `accept` in the thread
        self._socket.close()

    @abc.abstractmethod
    def serve(self, connection: Connection) -> None:
        """Serve a process that has connected, up to the end; in a thread of its own."""

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._socket.accept()
                _keep_alive(accepted)
                connection = Connection(accepted.detach())
                # A stranger may connect and remain silent: a thread for each connection.
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with connection, contextlib.suppress(AuthenticationError, EOFError, OSError):
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            self.serve(connection)


def _listening(*, local: bool) -> socket.socket:
    """Return a socket that listens at this host's loopback address, or at all of its addresses."""
    if local:
        address = addresses.loopback()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, 0), family=family)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 is switched off
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _addresses(hosts: Sequence[str]) -> list[str]:
    """Return addresses of this host that processes on `hosts` may reach, the likeliest first."""
    local = [address for group in addresses.of_interfaces().values() for address in group]
    fallbacks = addresses.not_loopback([*addresses.of_default_route(), *local])
    candidates = [*filter(None, map(addresses.towards, hosts)), *fallbacks]
    # Link-local addresses last: their scope is an interface here, and another host may lack it.
    candidates.sort(key=lambda address: "%" in address)
    return [*dict.fromkeys(candidates), socket.gethostname()]


def meet(variable: str) -> Connection:
    """Connect to a `Meeting`: at the address that sshd reports, then at those of the meeting.

    Args:
        variable: its `variable`.

    Raises:
        ConnectionError: it answers at none of its addresses; the message names all of them.
    """
    key, port, meeting_addresses, login = variable.split()
    candidates = dict.fromkeys([*_caller_by_ssh(login), *meeting_addresses.split(",")])
    faults = []
    for address in candidates:
        try:
            return _connect(address, int(port), bytes.fromhex(key))
        # Another host may have the same address, of a network of containers for one.
        except (OSError, EOFError, AuthenticationError) as error:
            faults.append(f"{address}: {error or 'the connection was closed'}")
    raise ConnectionError(
        f"{socket.gethostname()}: expected to reach the caller of ringar.run at port {port}, "
        f"received {'; '.join(faults)}; open the ports between these hosts"
    )


def _caller_by_ssh(login: str) -> list[str]:
    """Return the address from which sshd has seen the caller, if ssh has started this process.

    Args:
        login: the login of the caller itself, which a process on its host has inherited.
    """
    words = os.environ.get(BY_SSH, "").split()
    return words[:1] if ",".join(words) != login else []


def _connect(address: str, port: int, key: bytes) -> Connection:
    """Connect to an address, and prove that both sides know the key."""
    peer = socket.create_connection((address, port), _CONNECT_TIMEOUT)
    peer.settimeout(None)
    _keep_alive(peer)
    connection = Connection(peer.detach())
    try:
        if not connection.poll(_CONNECT_TIMEOUT):
            raise TimeoutError("the program that listens there sends nothing")
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
    except BaseException:
        connection.close()
        raise
    return connection


def _keep_alive(connection: socket.socket) -> None:
    """Let a connection end some 40 s after the host at its other end has lost its power."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 10),
        (socket.TCP_KEEPINTVL, 10),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, 40_000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Server(Meeting):
    """The caller's side: gives ranks functions, and collects the outcomes.

    Args:
        hosts: the other hosts that ranks run on.
        local: whether all ranks run on this host.
        last: the message of the only call; without it there may be any number.
    """

    def __init__(self, hosts: Sequence[str], *, local: bool, last: bytes | None = None) -> None:
        super().__init__(hosts, local=local)
        #: The outcomes of the last call, by rank, in the order of their arrival.
        self.outcomes: dict[int, Outcome] = {}
        self._change = threading.Condition()
        self._calls = 0 if last is None else 1
        self._message, self._is_last = last or b"", last is not None

    def __exit__(self, *_: object) -> None:
        self.end()
        super().__exit__()

    def call(self, message: bytes) -> None:
        """Give the ranks the next function; `outcomes` are then of this one."""
        with self._change:
            self._calls, self._message, self.outcomes = self._calls + 1, message, {}
            self._change.notify_all()

    def end(self) -> None:
        """Tell the ranks that there will be no other function: they end."""
        with self._change:
            self._is_last = True
            self._change.notify_all()

    def wait(self, count: int, seconds: float) -> bool:
        """Wait until so many outcomes have come; return whether they have."""
        with self._change:
            return self._change.wait_for(lambda: len(self.outcomes) >= count, seconds)

    def serve(self, connection: Connection) -> None:
        """Serve a rank; in an elastic job a process, which has the number of its slot.

        One that dies ends its connection; the launcher reports it.
        """
        rank, done = int(connection.recv_bytes()), 0
        while done := self._next(done):
            message, outcomes = self._message, self.outcomes
            connection.send_bytes(_MORE)
            connection.send_bytes(message)
            with self._change:
                outcomes.pop(rank, None)  # of a process that has had this number before
            trace, value, place = (connection.recv_bytes() for _ in range(3))
            world, rank_there = map(int, place.split())
            with self._change:
                outcomes[rank] = Outcome(trace.decode(), value, (world, rank_there))
                self._change.notify_all()
            connection.send_bytes(b"received")
        connection.send_bytes(_LAST)

    def _next(self, done: int) -> int:
        """Wait for a call after number `done`; return its number, or 0 at the end."""
        with self._change:
            self._change.wait_for(lambda: self._calls > done or self._is_last)
            return self._calls if self._calls > done else 0


class Client:
    """A rank's side of the connection.

    Args:
        rank: the number of this rank.

    Raises:
        ConnectionError: no address of the caller answers; the message names all of them.
    """

    def __init__(self, rank: int) -> None:
        # Programs that this rank starts are no ranks.
        self._connection = meet(os.environ.pop(VARIABLE))
        self._connection.send_bytes(b"%d" % rank)

    def messages(self) -> Iterator[bytes]:
        """Wait for the functions, one after the other; `send` the outcome of each before the next.

        It ends with the last one, or with the caller.
        """
        with contextlib.suppress(EOFError, ConnectionError):
            while self._connection.recv_bytes() == _MORE:
                yield self._connection.recv_bytes()
        self._connection.close()

    def send(self, outcome: Outcome) -> None:
        """Send this rank's outcome, and wait until the caller has all of it."""
        self._connection.send_bytes(outcome.trace.encode(errors="replace"))
        self._connection.send_bytes(outcome.value)
        self._connection.send_bytes("{} {}".format(*outcome.place).encode())
        self._connection.recv_bytes()
