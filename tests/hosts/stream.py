"""How fast is the link between two hosts? One TCP stream, measured where it arrives.

As a program it is either end: `stream.py receive`, `stream.py send ADDRESS PORT BYTES`.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time

from tests.hosts.hosts import Host

_CHUNK = 1 << 20


def measure(source: Host, sink: Host, count: int) -> float:
    """Bytes per second at which `count` bytes come from one host to another."""
    python = [sys.executable, "-m", "tests.hosts.stream"]
    with sink.popen(*python, "receive", stdout=subprocess.PIPE) as receiver:
        assert receiver.stdout is not None
        try:
            port = receiver.stdout.readline().strip()
            source.run(*python, "send", sink.address, port, str(count))
            received, seconds = receiver.stdout.readline().split()
        finally:
            receiver.kill()
    if int(received) != count:
        raise RuntimeError(f"expected {count} bytes, received {received}")
    return count / float(seconds)


def receive() -> None:
    with socket.create_server(("", 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection = server.accept()[0]
    buffer = bytearray(_CHUNK)
    # From the first bytes on, when the bucket has let its burst through and the sender is running.
    total = connection.recv_into(buffer)
    start = time.perf_counter()
    while count := connection.recv_into(buffer):
        total += count
    print(total, time.perf_counter() - start, flush=True)


def send(address: str, port: int, count: int) -> None:
    chunk = bytes(_CHUNK)
    with socket.create_connection((address, port), timeout=20) as connection:
        for start in range(0, count, _CHUNK):
            connection.sendall(chunk[: count - start])


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive()
    else:
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
