"""Which addresses can be reached: a look at the network, apart from any message of the job.

Ranks that could not meet look whether they can reach each other's hosts, and a host that is to get
its first rank looks before that rank joins. A host that refuses a connection is there.

Nothing here needs TensorFlow or NumPy: the launcher uses it, too.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from collections.abc import Sequence

SECONDS = 5.0
"""For a host that answers; the first three packets of TCP are sent in this time."""

_ANSWERS = (0, errno.EISCONN, errno.ECONNREFUSED, errno.ECONNRESET)


def unreached(addresses: Sequence[str], seconds: float = SECONDS) -> list[int]:
    """Try to connect to all addresses at once; return the numbers of those without an answer.

    Args:
        addresses: "10.0.0.1:4711" or "[fe80::1]:4711".
        seconds: how long to wait for answers.
    """
    with contextlib.ExitStack() as stack:
        waiting: dict[int, tuple[int, socket.socket]] = {}
        lost: list[int] = []
        for number, text in enumerate(addresses):
            begun = stack.enter_context(_socket(text))
            code = begun.connect_ex(_address(text))
            if code in (errno.EINPROGRESS, errno.EAGAIN):
                waiting[begun.fileno()] = number, begun
            elif code not in _ANSWERS:
                lost.append(number)
        lost += _without_answer(waiting, time.monotonic() + seconds)
    return sorted(lost)


def _without_answer(waiting: dict[int, tuple[int, socket.socket]], until: float) -> list[int]:
    poll, lost = select.poll(), []
    for fd in waiting:
        poll.register(fd, select.POLLOUT)
    while waiting and (seconds := until - time.monotonic()) > 0:
        for fd, _ in poll.poll(seconds * 1000):
            poll.unregister(fd)
            number, connection = waiting.pop(fd)
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) not in _ANSWERS:
                lost.append(number)
    return lost + [number for number, _ in waiting.values()]


def _socket(text: str) -> socket.socket:
    endpoint = socket.socket(socket.AF_INET6 if text.startswith("[") else socket.AF_INET)
    endpoint.setblocking(False)
    return endpoint


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
