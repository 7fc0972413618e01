"""Tests of which addresses can be reached, independent of the job's messages.

Ranks that could not meet test whether they can reach each other's hosts; so does a host before its
first rank joins. A host that refuses a connection can be reached.

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
"""The time to wait for an answer; TCP sends its first three packets in this time."""

_ANSWERS = (0, errno.EISCONN, errno.ECONNREFUSED, errno.ECONNRESET)


def unreached(addresses: Sequence[str], seconds: float = SECONDS) -> list[int]:
    """Try to connect to all addresses at once; return the numbers of those without an answer.

    Args:
        addresses: "10.0.0.1:4711" or "[fe80::1]:4711".
        seconds: how long to wait for answers.
    """
    with contextlib.ExitStack() as stack:
        waiting: dict[int, tuple[int, socket.socket]] = {}
        failures: list[int] = []
        for number, text in enumerate(addresses):
            endpoint = stack.enter_context(_socket(text))
            code = endpoint.connect_ex(_address(text))
            if code in (errno.EINPROGRESS, errno.EAGAIN):
                waiting[endpoint.fileno()] = number, endpoint
            elif code not in _ANSWERS:
                failures.append(number)
        failures += _without_answer(waiting, time.monotonic() + seconds)
    return sorted(failures)


def _without_answer(waiting: dict[int, tuple[int, socket.socket]], until: float) -> list[int]:
    poll, failures = select.poll(), []
    for fd in waiting:
        poll.register(fd, select.POLLOUT)
    while waiting and (seconds := until - time.monotonic()) > 0:
        for fd, _ in poll.poll(seconds * 1000):
            poll.unregister(fd)
            number, connection = waiting.pop(fd)
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) not in _ANSWERS:
                failures.append(number)
    return failures + [number for number, _ in waiting.values()]


def _socket(text: str) -> socket.socket:
    endpoint = socket.socket(socket.AF_INET6 if text.startswith("[") else socket.AF_INET)
    endpoint.setblocking(False)
    return endpoint


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
