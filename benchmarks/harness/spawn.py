"""Starts a command N times side by side: `spawn.py N command...`, for peers without a launcher.

Ranks find each other through RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and BENCH_PORTS, and are
bound to as many cores as ringarrun gives a rank. The first that fails, or SIGTERM, ends all.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys


def free_ports(count: int) -> list[int]:
    """Returns ports that no process listened on a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    for endpoint in sockets:
        endpoint.bind(("127.0.0.1", 0))
    ports = [endpoint.getsockname()[1] for endpoint in sockets]
    for endpoint in sockets:
        endpoint.close()
    return ports


def main() -> int:
    ranks, command = int(sys.argv[1]), sys.argv[2:]
    ports = free_ports(ranks + 1)
    cores = sorted(os.sched_getaffinity(0))
    common = {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(ports[0]),
        "BENCH_PORTS": ",".join(map(str, ports[1:])),
    }
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            share = len(cores) // ranks
            if share:
                os.sched_setaffinity(0, set(cores[rank * share : (rank + 1) * share]))
            environment = {**os.environ, **common, "RANK": str(rank)}
            processes.append(subprocess.Popen(command, env=environment))
        for _ in processes:
            _, status = os.wait()  # whichever ends first; no polling beside what is measured
            code = os.waitstatus_to_exitcode(status)
            if code:
                return abs(code)
    finally:
        for process in processes:
            process.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
