"""The connection between the caller of `ringar.run` and its ranks.

The caller listens on a port. Each rank connects to it, receives the function, and sends its outcome
when the function has ended. Nothing is written to a disk, so that hosts need not share one.

Both sides prove that they know the key in the rank's environment, before either unpickles anything
(the challenges of `multiprocessing.connection`). A job on this host uses the loopback interface.
Between hosts messages are not encrypted, like those of MPI.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import NamedTuple

from ringar.launchers import addresses

VARIABLE = "RINGAR_RUN"
"""Tells a rank of `ringar.run` the key, the port and the addresses of its caller."""

_CONNECT_TIMEOUT = 10.0  # seconds for each address


class Outcome(NamedTuple):
    """The end of the function on one rank.

    Attributes:
        trace: the traceback of its error; "" if it has returned.
        value: the pickled result or exception; empty if the exception cannot be pickled.
    """

    trace: str
    value: bytes


class Server:
    """The caller's side: gives each rank the function, and collects the outcomes.

    Args:
        payload: the message for each rank.
        hosts: the other hosts that ranks run on.
        local: whether all ranks run on this host.
    """

    def __init__(self, payload: bytes, hosts: Sequence[str], *, local: bool) -> None:
        #: By rank, in the order of their arrival.
        self.outcomes: dict[int, Outcome] = {}
        self._payload = payload
        self._key = secrets.token_bytes(32)
        self._socket = socket.create_server(("127.0.0.1" if local else "", 0))
        self._addresses = ["127.0.0.1"] if local else _addresses(hosts)

    @property
    def variable(self) -> str:
        """The value of `VARIABLE` for the ranks."""
        port = self._socket.getsockname()[1]
        return f"{self._key.hex()} {port} {','.join(self._addresses)}"

    def __enter__(self) -> Server:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # ends `accept` in the thread
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = Connection(self._socket.accept()[0].detach())
                # A stranger may connect and remain silent: a thread for each connection.
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        # A rank that dies ends its connection. The launcher reports it.
        with connection, contextlib.suppress(AuthenticationError, EOFError, OSError):
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            rank = int(connection.recv_bytes())
            connection.send_bytes(self._payload)
            outcome = Outcome(connection.recv_bytes().decode(), connection.recv_bytes())
            self.outcomes[rank] = outcome
            connection.send_bytes(b"received")


def _addresses(hosts: Sequence[str]) -> list[str]:
    """Return addresses of this host that ranks on `hosts` may reach, the likeliest first."""
    everywhere = [one for ones in addresses.of_interfaces().values() for one in ones]
    found = [*map(addresses.towards, hosts), *addresses.not_loopback(everywhere)]
    found.append(socket.gethostname())
    return [one for one in dict.fromkeys(found) if one and ":" not in one]  # listens by IPv4


class Client:
    """A rank's side of the connection.

    Args:
        rank: the number of this rank.

    Raises:
        ConnectionError: no address of the caller answers; the message names all of them.
    """

    def __init__(self, rank: int) -> None:
        # Programs that this rank starts are no ranks.
        key, port, addresses = os.environ.pop(VARIABLE).split()
        self._connection = _connect(addresses.split(","), int(port))
        answer_challenge(self._connection, bytes.fromhex(key))
        deliver_challenge(self._connection, bytes.fromhex(key))
        self._connection.send_bytes(b"%d" % rank)
        self.payload = self._connection.recv_bytes()

    def send(self, outcome: Outcome) -> None:
        """Send this rank's outcome, and wait until the caller has all of it."""
        self._connection.send_bytes(outcome.trace.encode(errors="replace"))
        self._connection.send_bytes(outcome.value)
        self._connection.recv_bytes()
        self._connection.close()


def _connect(addresses: Sequence[str], port: int) -> Connection:
    faults = []
    for address in addresses:
        try:
            found = socket.create_connection((address, port), _CONNECT_TIMEOUT)
        except OSError as error:
            faults.append(f"{address}: {error}")
            continue
        found.settimeout(None)
        return Connection(found.detach())
    raise ConnectionError(
        f"{socket.gethostname()}: expected to reach the caller of ringar.run at port {port}, "
        f"received {'; '.join(faults)}; open the ports between these hosts"
    )
