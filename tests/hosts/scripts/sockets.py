"""Writes the address of each socket at which this rank listens, and of each connection, as JSON."""

from __future__ import annotations

import ipaddress
import json
import os
import sys
from pathlib import Path

import numpy as np

import ringar

LISTENS, CONNECTED = "0A", "01"  # <netinet/tcp.h>, as /proc/net/tcp has them


def address_of(digits: str) -> str:
    """The address of a line of /proc/net/tcp: words of the machine's byte order."""
    words = bytes.fromhex(digits)
    parts = [words[i : i + 4][::-1] for i in range(0, len(words), 4)]
    return str(ipaddress.ip_address(b"".join(parts)))


def own_addresses(state: str) -> list[str]:
    """The address of each of this process' sockets in a state."""
    targets = [os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    addresses = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == state and f"socket:[{fields[9]}]" in targets:
                addresses.append(address_of(fields[1].split(":")[0]))
    return sorted(addresses)


ringar.init(deadline=20)
total = ringar.allreduce(np.arange(1 << 16, dtype=np.float32), op=ringar.Sum)
np.testing.assert_array_equal(total, 2 * np.arange(1 << 16, dtype=np.float32))
answer = {state: own_addresses(state) for state in (LISTENS, CONNECTED)}
ringar.barrier()
Path(sys.argv[1], f"{ringar.rank()}.json").write_text(json.dumps(list(answer.values())))
