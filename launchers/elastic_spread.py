"""Run an elastic job over several hosts: their guards run the processes, `worlds.py` decides here.

    ringarrun: elastic_spread.py -> ssh (or srun) -> on each host: elastic_guard.py -> processes

As in other jobs without MPI (spread.py), each host has one process here, the way to its guard, and
all that is said goes through its pipes; elastic_guard.py lists the lines. The way to a host is made
when the first process starts there. If it ends, the host's processes are lost with it; it is made
again when a slot of that host is to be filled.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ringar.launchers import clock, graces, signals, spread
from ringar.launchers.discovery import Discovery
from ringar.launchers.fleet import End
from ringar.launchers.host_guard import ANSWER
from ringar.launchers.hosts import Host
from ringar.launchers.local import LocalJob
from ringar.launchers.mpi_plan import MpiJob
from ringar.launchers.plan import RankPlan
from ringar.launchers.ranks import Rank
from ringar.launchers.roster import Member
from ringar.launchers.spread import SpreadJob
from ringar.launchers.worlds import Limits, Worlds


def run(
    job: MpiJob, limits: Limits, discovery: Discovery | None, absent: Collection[str] = ()
) -> int:
    """Run a job that `mpi_plan.py` has planned for `spread.py`; return its exit code.

    Args:
        job: the job, on all hosts.
        limits: the numbers of ranks.
        discovery: tells the hosts, if they may change.
        absent: names of hosts that cannot take part now; they are tried again later.

    Raises:
        UsageError: a file that all ranks must have cannot be read.
    """
    os.environ.update(job.command.environment)
    options = spread.parse(job.command.words[3:])
    return ElasticSpreadJob(options, job, limits, discovery, absent).run()


class ElasticSpreadJob(SpreadJob):
    """A job over several hosts whose ranks may change; the fleet of its worlds."""

    also_stops = ()
    stops_itself = True

    def __init__(
        self,
        options: argparse.Namespace,
        job: MpiJob,
        limits: Limits,
        discovery: Discovery | None,
        absent: Collection[str],
    ) -> None:
        super().__init__(options.hosts, [], spread.first_line(options), spread.for_ranks())
        self._options, self._plan, self._absent = options, job, absent
        self._worlds = Worlds(limits, discovery, self)
        self._all_hosts = list(options.hosts)  # by number; discovery adds to them
        self._places: list[tuple[int, int]] = []  # of each slot: its host, its number there
        self._ways: dict[int, Rank] = {}  # by host
        self._silent: dict[int, float] = {}  # hosts that have not answered, and until when they may
        self._processes: dict[int, str] = {}  # by slot, as messages name them
        self._addresses_of: dict[int, str] = {}  # by slot

    # The fleet

    def slots(self, hosts: Sequence[Host] | None) -> Sequence[int]:
        """Return the slots of `hosts`; those of new ones are added."""
        found = []
        for host in self._options.hosts if hosts is None else hosts:
            number = self._number_of(host)
            for local in range(host.slots):
                if (number, local) not in self._places:
                    self._places.append((number, local))
                found.append(self._places.index((number, local)))
        return found

    def _number_of(self, host: Host) -> int:
        for number, known in enumerate(self._all_hosts):
            if known.name == host.name:
                if host.slots > known.slots:
                    self._all_hosts[number] = host
                return number
        self._all_hosts.append(host)
        return len(self._all_hosts) - 1

    def host_of(self, slot: int) -> int:
        """Return the number of the host of a slot."""
        return self._places[slot][0]

    def _host_of(self, slot: int) -> Host:
        return self._all_hosts[self.host_of(slot)]

    def start(self, slot: int) -> None:
        """Start a process, through the way to its host."""
        number, local = self._places[slot]
        self._processes[slot] = f"a process on {self._all_hosts[number].name}"
        if number not in self._ways:
            self._open_way(number)
        reach = self._addresses_from(number)
        self._tell(self._ways[number], {"start": slot, "local": local, "reach": reach})

    def _addresses_from(self, number: int) -> list[str]:
        """Return an address on each host of the world that is to be reached from another host."""
        roster = self._worlds.roster
        ranks = [m.slot for m in roster.living.values() if m.world == roster.generation > 0]
        addresses = {self.host_of(slot): self._addresses_of[slot] for slot in ranks}
        return [] if number in addresses else list(addresses.values())

    def stop(self, slot: int, number: int) -> None:
        """Send the processes of a slot a signal."""
        self._tell_host_of(slot, {"stop": slot, "number": number})

    def lose(self, slot: int) -> None:
        """End the way to the host of a slot, with which its processes are lost."""
        if way := self._ways.get(self.host_of(slot)):
            os.killpg(way.pid, signal.SIGKILL)

    def tell(self, slot: int, message: Mapping[str, Any]) -> None:
        """Pass a message on to the process of a slot."""
        self._tell_host_of(slot, {"tell": slot, "message": message})

    def open_world(self, generation: int, world: Sequence[Member]) -> None:
        """Tell all members their place, the addresses of all, and a new secret."""
        numbers = list(dict.fromkeys(self.host_of(member.slot) for member in world))
        told = {
            "generation": generation,
            "hosts": [numbers.index(self.host_of(member.slot)) for member in world],
            "addresses": [self._addresses_of[member.slot] for member in world],
            "secret": secrets.token_hex(32),
            **self._for_ranks,
        }
        for number in numbers:
            ranks = {m.slot: m.rank for m in world if self.host_of(m.slot) == number}
            if number in self._ways:
                self._tell(self._ways[number], {"world": told, "ranks": ranks})

    def end(self, when: float) -> None:
        """End the job then."""
        self._term_at = min(when, self._term_at or when)

    def note(self, text: str) -> None:
        """Show a message."""
        self._err.message(text)

    def say(self, text: str) -> None:
        """Show a message if the user has asked for details."""
        if self._plan.verbose:
            self.note(text)

    # Hosts

    def _open_way(self, number: int) -> None:
        hosts = [(host.name, host.slots) for host in self._all_hosts]
        self._start_rank(RankPlan(number, len(hosts), number, len(hosts)))
        self._ways[number] = self.ranks[-1]
        self._silent[number] = clock.now() + spread.ANSWER_TIMEOUT
        self._tell(self._ways[number], {**self._first_line, "hosts": hosts})

    def _command_of(self, plan: RankPlan) -> Sequence[str]:
        return spread.command_for(self._options, plan.rank, self._all_hosts[plan.rank])

    def _tell_host_of(self, slot: int, what: object) -> None:
        number = self.host_of(slot)
        if number in self._ways:
            self._tell(self._ways[number], what)

    def _take_answer(self, line: bytes) -> bool:
        if not line.startswith(ANSWER):
            return False
        answer = json.loads(line[len(ANSWER) :])
        slot = answer["slot"]
        if "started" in answer:
            self._silent.pop(self.host_of(slot), None)
            name = self._all_hosts[self.host_of(slot)].name
            self._processes[slot] = f"process {answer['started']} on {name}"
            self._addresses_of[slot] = answer["address"]
            self.say(f"slot {slot}: {self._processes[slot]}")
        elif "said" in answer:
            self._worlds.on_message(slot, answer["said"])
        elif "unreached" in answer:
            self._silent.pop(self.host_of(slot), None)
            name, peers = self._host_of(slot).name, ", ".join(answer["unreached"])
            how = {"code": 1, "ending": f"was not started: {name} cannot reach {peers}"}
            self._on_end(slot, how)
        else:
            self._note_obedience(answer["ended"]["code"], clock.now())
            self._on_end(slot, answer["ended"], answer["stopped"])
        return True

    def _on_end(self, slot: int, how: Mapping[str, Any] | None, stopped: bool = False) -> None:
        if slot in self._worlds.roster.living:
            is_news = how is not None and not stopped and not self.signal
            end = End(self._processes[slot], **how) if is_news and how is not None else None
            self._worlds.on_end(slot, end, clock.now())

    def _on_exit(self, rank: Rank, now: float) -> None:
        """Take the end of a way, with which all processes of its host are lost."""
        number = rank.number
        rank.stdout.drain()
        if self._ways.get(number) is rank:
            del self._ways[number]
            self._silent.pop(number, None)
        ending = f"is lost: the way to its host ended with {rank.status}"
        how = {"code": 1, "ending": ending, "with_host": True}
        for slot in list(self._worlds.roster.living):
            if self.host_of(slot) == number:
                self._on_end(slot, how, rank.stopped)

    # The job

    def _planned(self) -> Sequence[RankPlan]:
        return ()

    def _start(self) -> None:
        super()._start()
        names = self._absent
        absent = [slot for slot in self.slots(None) if self._host_of(slot).name in names]
        self._worlds.begin(clock.now(), absent)

    def _step(self, now: float) -> bool:
        has_ended = super()._step(now)
        if self._term_at is None and not has_ended:
            self._worlds.step(now)
        return has_ended

    def _check_answers(self, now: float) -> None:
        for number, until in list(self._silent.items()):
            if now > until:
                self.note(
                    f"{self._all_hosts[number].name}: expected an answer in "
                    f"{spread.ANSWER_TIMEOUT:.0f} s, received none; it is given up"
                )
                del self._silent[number]
                os.killpg(self._ways[number].pid, signal.SIGKILL)

    def _timeout(self, now: float) -> float | None:
        return self._worlds.timeout(LocalJob._timeout(self, now))

    # The end

    def _stop_ranks(self) -> None:
        self._worlds.on_stop()
        has_time = self.signal != 0 and self._plan.kill_grace is not None
        self._tell_guards(signals.ASK if has_time else signal.SIGTERM)

    def _kill_all(self) -> None:
        self._worlds.on_stop()
        super()._kill_all()

    def _kill_grace(self) -> float:
        asked = self._plan.kill_grace or 0.0 if self.signal else 0.0
        return max(super()._kill_grace(), asked + graces.SETTLE)

    def _end(self) -> None:
        super()._end()
        self._worlds.close()

    def _report(self) -> None:
        cause = self._worlds.cause
        if self._worlds.trouble:
            self.note(self._worlds.trouble)
        elif self.signal:
            self.note(f"stopped all ranks on {signals.name_of(self.signal)}")
        elif cause is not None:
            self.note(
                f"a rank of the job ({cause.process}) {cause.ending}; the others were stopped"
            )
        elif not self._worlds.roster.is_finishing:
            self.note("all ranks have left, and none has come to its end")

    def _exit_code(self) -> int:
        if self._worlds.trouble:
            return 1
        if self.signal:
            return 128 + self.signal
        cause = self._worlds.cause
        return int(not self._worlds.roster.is_finishing) if cause is None else cause.code
