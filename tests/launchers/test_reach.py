"""Which addresses answer: those that listen or refuse, and not those that are silent."""

from __future__ import annotations

import contextlib
import socket

from ringar.job import reach


def test_an_address_that_refuses_is_reached_and_a_silent_one_is_not() -> None:
    with contextlib.ExitStack() as stack:
        listens = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):  # its queue is full: Linux drops what would connect
            waits = stack.enter_context(socket.socket())
            waits.setblocking(False)
            waits.connect_ex(silent.getsockname())
        with socket.create_server(("127.0.0.1", 0)) as closed:
            refuses = closed.getsockname()
        places = [listens.getsockname(), silent.getsockname(), refuses]
        texts = [f"{host}:{port}" for host, port in places]
        assert reach.unreached(texts, 0.5) == [1]
    assert reach.unreached([], 0.5) == []
