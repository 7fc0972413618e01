"""Which ranks of a job train together in each case, and how many of them share a core."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Seat:
    """The place of one rank.

    Attributes:
        host: the number of its host in the job.
        local_rank: its number on the host.
        name: the name of the host.
        machine: the boot of the kernel: network namespaces are hosts that share a machine.
        cores: those that the rank may use.
    """

    host: int
    local_rank: int
    name: str
    machine: str
    cores: tuple[int, ...]


def this_seat() -> Seat:
    """Returns the seat of this rank."""
    import ringar

    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    cores = tuple(sorted(os.sched_getaffinity(0)))
    return Seat(ringar.cross_rank(), ringar.local_rank(), socket.gethostname(), boot, cores)


def powers(most: int) -> list[int]:
    """Returns 1, 2, 4, ... below `most`, and `most`."""
    return [*takewhile(lambda n: n < most, (1 << bit for bit in range(64))), most]


class Placement:
    """The seats of all ranks of a job, in rank order.

    Raises:
        ValueError: hosts have different numbers of ranks: no ideal is known of such a job.
    """

    def __init__(self, seats: Sequence[Seat]) -> None:
        self.seats = list(seats)
        counts = Counter(seat.host for seat in seats)
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"expected equally many ranks on each host, received {sorted(counts.values())}; "
                "start as many on every host"
            )
        self.hosts, self.ranks_per_host = len(counts), len(self.seats) // len(counts)

    def counts(self, hosts: Sequence[int] = ()) -> list[int]:
        """Returns the numbers of ranks: 1, 2, 4, ... of a host, then 2, 4, ... full hosts.

        Args:
            hosts: the numbers of full hosts, in place of 1, 2, 4, ... and all.
        """
        full_hosts = {self.ranks_per_host * n for n in hosts or powers(self.hosts)}
        return sorted({*powers(self.ranks_per_host), *full_hosts})

    def hosts_of(self, count: int) -> int:
        """Returns the number of hosts that `count` ranks take: one host is filled first."""
        return -(-count // self.ranks_per_host)

    def members(self, count: int) -> list[int]:
        """Returns the ranks of a case with `count` ranks, host by host."""
        ranks = range(len(self.seats))
        order = sorted(ranks, key=lambda r: (self.seats[r].host, self.seats[r].local_rank))
        return order[:count]

    def leads(self) -> list[int]:
        """Returns the first rank of each host."""
        return self.members(len(self.seats))[:: self.ranks_per_host]

    def cores(self) -> int:
        """Returns the cores that all ranks of the first machine may use."""
        machine = self.seats[self.members(1)[0]].machine
        return len({core for seat in self.seats if seat.machine == machine for core in seat.cores})

    def turns(self, count: int, threads: int) -> float:
        """Returns how many threads of a case share a core on the fullest machine; 1 at least."""
        fullest = 1.0
        for machine in {seat.machine for seat in self.seats}:
            seats = [self.seats[r] for r in self.members(count) if self.seats[r].machine == machine]
            cores = {core for seat in seats for core in seat.cores}
            if cores:
                fullest = max(fullest, len(seats) * threads / len(cores))
        return fullest

    def describe(self) -> dict[str, Any]:
        """Returns plain data for the report."""
        names = [self.seats[rank].name for rank in self.leads()]
        machines = len({seat.machine for seat in self.seats})
        return {"hosts": names, "machines": machines, "ranks_per_host": self.ranks_per_host}
