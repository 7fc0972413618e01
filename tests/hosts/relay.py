"""A relay in user space, which a link of a host goes through: it drops, delays, changes frames.

It can give each connection a rate of its own, too.

    python relay.py PORT MTU PLAN-AS-JSON

runs where the switch is. It takes the host's port from the switch, and puts a bridge of its own and
two TAP devices in between, whose frames it passes on:

    host -- PORT -- bridge -- tap -- this program -- tap -- switch

Not every kernel has `tc netem`. A frame that goes to a TAP device is cut to the MTU and has its
checksum, as on a wire: TCP sees the bits that the relay flips.

The plan has the fields of `Faults` by name. The relay writes a line once frames pass, and ends when
its standard input does; its devices end with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from dataclasses import dataclass

_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x0002 | 0x1000
_LARGEST_FRAME = 1 << 16
_HEADERS = 14 + 20
"""Bytes of Ethernet and IPv4: in a frame that is longer, bits behind these are flipped."""
_QUEUE = 0.05
"""Seconds that a frame may wait for those of its connection before it, or else is lost."""
_LOOK = 0.02
"""Seconds between two looks for the file that takes the link down."""


@dataclass(frozen=True)
class Faults:
    """What the relay does to frames, in both directions.

    Attributes:
        seed: of the random numbers.
        drop: the part of the frames that is lost.
        flip: the part of the frames in which a bit is flipped; checksums stay as they were.
        delay: frames wait for up to so many seconds, each for another time: they overtake each
            other.
        latency: all frames wait for so many seconds, besides.
        rate: bytes per second that each connection over TCP gets in a direction; 0: any.
        down_file: the link goes down when this file appears; "": never.
        down: for so many seconds.
    """

    seed: int = 0
    drop: float = 0.0
    flip: float = 0.0
    delay: float = 0.0
    latency: float = 0.0
    rate: float = 0.0
    down_file: str = ""
    down: float = 0.0


def open_tap(name: str) -> int:
    """Make a TAP device, which lives as long as the descriptor."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_WITHOUT_HEADER))
    return tap


def insert(port: str, mtu: str) -> tuple[int, int]:
    """Take a port from the switch; return the descriptors towards its host and the switch."""

    def ip(*words: str) -> None:
        subprocess.run(["ip", "link", *words], check=True)

    bridge, names = f"{port}-b", (f"{port}-h", f"{port}-s")
    taps = open_tap(names[0]), open_tap(names[1])
    ip("add", "name", bridge, "type", "bridge", "forward_delay", "0")
    for name, master in zip(names, (bridge, "switch"), strict=True):
        ip("set", name, "mtu", mtu, "txqueuelen", "10000", "master", master, "up")
    ip("set", port, "master", bridge)
    ip("set", bridge, "mtu", mtu, "up")
    return taps


class Relay:
    """Passes frames between two descriptors, and does to them what `faults` says."""

    def __init__(self, taps: tuple[int, int], faults: Faults) -> None:
        self._taps, self._faults = taps, faults
        self._random = random.Random(faults.seed)
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._count = 0
        self._free_at: dict[bytes, float] = {}  # connections, and when the next frame may pass
        self._down_until = 0.0
        self._has_been_down = not faults.down_file
        self._look_at = 0.0

    def run(self) -> None:
        """Relay until standard input ends."""
        readable: list[int] = []
        while 0 not in readable:
            now = time.monotonic()
            self._look(now)
            for tap in readable:
                self._take(tap, now)
            while self._waiting and self._waiting[0][0] <= now:
                _, _, tap, frame = heapq.heappop(self._waiting)
                with contextlib.suppress(OSError):  # full: lost, as on a wire
                    os.write(tap, frame)
            pause = _LOOK if not self._waiting else max(self._waiting[0][0] - time.monotonic(), 0)
            readable = select.select([0, *self._taps], [], [], min(pause, _LOOK))[0]

    def _look(self, now: float) -> None:
        if self._has_been_down or now < self._look_at:
            return
        self._look_at = now + _LOOK
        if os.path.exists(self._faults.down_file):
            self._has_been_down = True
            self._down_until = now + self._faults.down

    def _take(self, tap: int, now: float) -> None:
        other = self._taps[tap == self._taps[0]]
        for _ in range(64):
            try:
                frame = os.read(tap, _LARGEST_FRAME)
            except BlockingIOError:
                return
            if now < self._down_until or self._random.random() < self._faults.drop:
                continue
            if self._random.random() < self._faults.flip:
                frame = self._flipped(frame)
            wait = self._random.random() * self._faults.delay + self._faults.latency
            if self._faults.rate:
                connection = frame[26:38]  # addresses and ports
                free_at = max(self._free_at.get(connection, now), now)
                if free_at > now + _QUEUE:
                    continue
                self._free_at[connection] = free_at + len(frame) / self._faults.rate
                wait += free_at - now
            self._count += 1
            heapq.heappush(self._waiting, (now + wait, self._count, other, frame))

    def _flipped(self, frame: bytes) -> bytes:
        if frame[12:14] != b"\x08\x00" or len(frame) <= _HEADERS:  # ARP has no checksum
            return frame
        copy = bytearray(frame)
        copy[self._random.randrange(_HEADERS, len(frame))] ^= 1 << self._random.randrange(8)
        return bytes(copy)


def main() -> None:
    taps = insert(sys.argv[1], sys.argv[2])
    print("ready", flush=True)
    Relay(taps, Faults(**json.loads(sys.argv[3]))).run()


if __name__ == "__main__":
    main()
