"""The launcher's agent in a cluster, in the place of ssh: `agent.py ADDRESS HOST COMMAND`.

ADDRESS is a file with the address of the broker (`cluster.py`). A member of the host runs the
command. It receives the input of this process in messages; an empty message ends the input. It
sends the output, each message with a letter for its kind in front, and at last the exit code. As
with ssh, 255 means that the way itself has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from ringar.launchers.function.rendezvous import meet

OUT, ERR, EXIT = b"o", b"e", b"x"
"""The kinds of messages from a command."""

_LOST = 255


def main() -> int:
    """Run a command on a host of the cluster; return its exit code."""
    address, host, command = sys.argv[1:]
    try:
        with meet(Path(address).read_text()) as way:
            way.send_bytes(json.dumps({"agent": host, "command": command}).encode())
            threading.Thread(target=_feed, args=(way,), daemon=True).start()
            return _show(way)
    except (EOFError, OSError) as error:
        print(f"{host}: the way to it through the cluster has ended {error}", file=sys.stderr)
        return _LOST


def _feed(way: Connection) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(0, 1 << 16):
            way.send_bytes(data)
        way.send_bytes(b"")


def _show(way: Connection) -> int:
    while True:
        message = way.recv_bytes()
        kind, data = message[:1], memoryview(message)[1:]
        if kind == EXIT:
            return int(bytes(data))
        while data:
            data = data[os.write(1 if kind == OUT else 2, data) :]


if __name__ == "__main__":
    # Without the end of Python, which would wait for the thread that reads the input.
    code = main()
    sys.stderr.flush()
    os._exit(code)
