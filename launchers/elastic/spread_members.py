"""Run an elastic job over several hosts: guards run the processes, `next_world.py` decides here.

    ringarrun: spread_members.py -> ssh (or srun) -> on each host: guard.py -> processes

As in other jobs without MPI (spread.py), each host has one process here, the way to its guard,
whose pipes carry all messages; guard.py lists the lines. The way to a host is made when the first
process starts there. If it ends, the host's processes are lost with it; it is made again when a
slot of that host is to be filled.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ringar.launchers.elastic.discovery import Discovery
from ringar.launchers.elastic.fleet import End
from ringar.launchers.elastic.members import Elastic
from ringar.launchers.elastic.next_world import Limits, Worlds
from ringar.launchers.elastic.roster import Member
from ringar.launchers.plan.hosts import Host
from ringar.launchers.plan.job_plan import JobPlan, RankPlan
from ringar.launchers.start import spread
from ringar.launchers.start.hosts_plan import HostsPlan
from ringar.launchers.start.spread import Guards
from ringar.launchers.supervise import clock, graces
from ringar.launchers.supervise.failure_policy import FailurePolicy
from ringar.launchers.supervise.ranks import Rank
from ringar.launchers.supervise.runner import Runner


def run(
    job: HostsPlan, limits: Limits, discovery: Discovery | None, absentees: Collection[str] = ()
) -> int:
    """Run a job that `hosts_plan.py` has planned for `spread.py`; return its exit code.

    Args:
        job: the job, on all hosts.
        limits: the numbers of ranks.
        discovery: tells the hosts, if they may change.
        absentees: names of hosts that cannot take part now; they are tried again later.

    Raises:
        UsageError: a file that all ranks must have cannot be read.
    """
    os.environ.update(job.command.environment)
    hosts = SpreadMembers(job, limits, discovery, absentees)
    policy = WorldFailurePolicy(hosts.worlds, job.kill_grace)
    return Runner(JobPlan("spread", ("ringarrun",), ()), hosts.guards, policy, hosts).run()


class SpreadMembers(Elastic):
    """The processes of an elastic job on its hosts.

    Attributes:
        guards: the ways to the hosts.
    """

    def __init__(
        self,
        job: HostsPlan,
        limits: Limits,
        discovery: Discovery | None,
        absentees: Collection[str],
    ) -> None:
        super().__init__(Worlds(limits, discovery, self))
        self._start, self._verbose = spread.watching(job.start), job.verbose
        self._absentees = absentees
        self._for_ranks = spread.for_ranks()
        self.guards = Guards(self._command_of, spread.first_line(job.start), job.kill_grace)
        self.guards.on_answer = self._on_answer
        self._hosts = list(job.start.hosts)  # by number; discovery adds to them
        self._places: list[tuple[int, int]] = []  # of each slot: its host, its number there
        self._ways: dict[int, Rank] = {}  # by host
        self._silent: dict[int, float] = {}  # hosts that have not answered, and until when they may
        self._processes: dict[int, str] = {}  # by slot, as messages name them
        self._addresses: dict[int, str] = {}  # by slot

    # The fleet

    def slots(self, hosts: Sequence[Host] | None) -> Sequence[int]:
        """Return the slots of `hosts`; slots of new hosts are added."""
        slots = []
        for host in self._start.hosts if hosts is None else hosts:
            number = self._number_of(host)
            for local in range(host.slots):
                if (number, local) not in self._places:
                    self._places.append((number, local))
                slots.append(self._places.index((number, local)))
        return slots

    def _number_of(self, host: Host) -> int:
        for number, entry in enumerate(self._hosts):
            if entry.name == host.name:
                if host.slots > entry.slots:
                    self._hosts[number] = host
                return number
        self._hosts.append(host)
        return len(self._hosts) - 1

    def host_of(self, slot: int) -> int:
        """Return the number of the host of a slot."""
        return self._places[slot][0]

    def _host_of(self, slot: int) -> Host:
        return self._hosts[self.host_of(slot)]

    def start(self, slot: int) -> None:
        """Start a process, through the way to its host."""
        number, local = self._places[slot]
        self._processes[slot] = f"a process on {self._hosts[number].name}"
        if number not in self._ways:
            self._open_way(number)
        reach = self._addresses_from(number)
        self.guards.tell(self._ways[number], {"start": slot, "local": local, "reach": reach})

    def _addresses_from(self, number: int) -> list[str]:
        """Return an address on each host of the world that is to be reached from another host."""
        roster = self.worlds.roster
        ranks = [m.slot for m in roster.living.values() if m.world == roster.generation > 0]
        addresses = {self.host_of(slot): self._addresses[slot] for slot in ranks}
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
        description = {
            "generation": generation,
            "hosts": [numbers.index(self.host_of(member.slot)) for member in world],
            "addresses": [self._addresses[member.slot] for member in world],
            "secret": secrets.token_hex(32),
            **self._for_ranks,
        }
        for number in numbers:
            ranks = {m.slot: m.rank for m in world if self.host_of(m.slot) == number}
            if number in self._ways:
                self.guards.tell(self._ways[number], {"world": description, "ranks": ranks})

    def say(self, text: str) -> None:
        """Show a message if the user has asked for details."""
        if self._verbose:
            self.note(text)

    # Hosts

    def _open_way(self, number: int) -> None:
        count = len(self._hosts)
        self.guards.first_line["hosts"] = [(host.name, host.slots) for host in self._hosts]
        self._ways[number] = self.runner.start_rank(RankPlan(number, count, number, count))
        self._silent[number] = clock.now() + spread.ANSWER_TIMEOUT

    def _command_of(self, number: int) -> Sequence[str]:
        return spread.command_for(self._start, number, self._hosts[number])

    def _tell_host_of(self, slot: int, message: object) -> None:
        number = self.host_of(slot)
        if number in self._ways:
            self.guards.tell(self._ways[number], message)

    def _on_answer(self, answer: Mapping[str, Any]) -> None:
        slot = answer["slot"]
        if "started" in answer:
            self._silent.pop(self.host_of(slot), None)
            name = self._hosts[self.host_of(slot)].name
            self._processes[slot] = f"process {answer['started']} on {name}"
            self._addresses[slot] = answer["address"]
            self.say(f"slot {slot}: {self._processes[slot]}")
        elif "said" in answer:
            self.worlds.on_message(slot, answer["said"])
        elif "unreached" in answer:
            self._silent.pop(self.host_of(slot), None)
            name, peers = self._host_of(slot).name, ", ".join(answer["unreached"])
            details = {"code": 1, "ending": f"was not started: {name} cannot reach {peers}"}
            self._on_end(slot, details)
        else:
            self.runner.failure_policy.note_obedience(answer["ended"]["code"], clock.now())
            self._on_end(slot, answer["ended"], answer["stopped"])

    def _on_end(self, slot: int, details: Mapping[str, Any], is_stopped: bool = False) -> None:
        if slot in self.worlds.roster.living:
            is_news = not is_stopped and not self.runner.stop.signal
            end = End(self._processes[slot], **details) if is_news else None
            self.worlds.on_end(slot, end, clock.now())

    def on_exit(self, rank: Rank, now: float) -> None:
        """Take the end of a way, with which all processes of its host are lost."""
        number = rank.number
        rank.stdout.drain()
        if self._ways.get(number) is rank:
            del self._ways[number]
            self._silent.pop(number, None)
        ending = f"is lost: the way to its host ended with {rank.status}"
        details = {"code": 1, "ending": ending, "with_host": True}
        for slot in list(self.worlds.roster.living):
            if self.host_of(slot) == number:
                self._on_end(slot, details, rank.is_stopped)

    # The job

    def absentees(self) -> Collection[int]:
        """Return the slots of hosts that cannot take part at the beginning."""
        return [slot for slot in self.slots(None) if self._host_of(slot).name in self._absentees]

    def step(self, now: float) -> None:
        """Give up hosts that do not answer, and take the steps of the worlds."""
        for number, until in list(self._silent.items()):
            if now > until:
                self.note(
                    f"{self._hosts[number].name}: expected an answer in "
                    f"{spread.ANSWER_TIMEOUT:.0f} s, received none; it is given up"
                )
                del self._silent[number]
                os.killpg(self._ways[number].pid, signal.SIGKILL)
        super().step(now)


class WorldFailurePolicy(FailurePolicy):
    """Decide on failures of an elastic job on its hosts."""

    def __init__(self, worlds: Worlds, kill_grace: float | None) -> None:
        super().__init__()
        self._worlds, self._kill_grace = worlds, kill_grace or 0.0

    def kill_grace(self) -> float:
        """Return the seconds from SIGTERM to SIGKILL, of which guards take the first ones."""
        grace = self._kill_grace if self.stop.signal else 0.0
        return max(graces.KILL, grace) + graces.SETTLE

    def report(self) -> None:
        """Tell the user why the job has ended, unless it has come to its end."""
        cause = self._worlds.cause
        if self._worlds.trouble:
            self.runner.note(self._worlds.trouble)
        elif self.stop.signal:
            self.note_signal()
        elif cause is not None:
            self.runner.note(f"{cause.process} {cause.ending}; the others were stopped")
        elif not self._worlds.roster.is_finishing:
            self.runner.note("all ranks have left, and none has come to its end")

    def exit_code(self) -> int:
        """Return the exit code: 1 if no rank has come to its end."""
        if self._worlds.trouble:
            return 1
        if self.stop.signal:
            return 128 + self.stop.signal
        cause = self._worlds.cause
        return int(not self._worlds.roster.is_finishing) if cause is None else cause.code
