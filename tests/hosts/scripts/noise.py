"""Connects and sends bytes, for some seconds: noise.py SEED ADDRESS PORT [ADDRESS PORT...]."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import sys
import time

rng = random.Random(int(sys.argv[1]))
targets = list(zip(sys.argv[2::2], map(int, sys.argv[3::2]), strict=True))
strangers: list[socket.socket] = []
connections, until = 0, time.monotonic() + 4
while time.monotonic() < until:
    with contextlib.suppress(OSError):
        stranger = socket.create_connection(rng.choice(targets), timeout=1)
        connections += 1
        start = rng.choice([b"", b"\0" * 4, struct.pack("<II", 0, 1), rng.randbytes(8)])
        stranger.send(start + rng.randbytes(rng.choice([0, 1, 31, 200, 5000])))
        strangers.append(stranger)  # some leave at once, some later
    if len(strangers) > 200 or (strangers and rng.random() < 0.5):
        strangers.pop(rng.randrange(len(strangers))).close()
print(connections)
