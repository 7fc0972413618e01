"""The processes on one host of an elastic job over several hosts.

The guard of the host (host_guard.py) starts them when it is told, and passes on what they and the
launcher say to each other (ringar/job/membership.py). After the line with the job, the lines are:

    elastic_spread.py                                      elastic_guard.py
    start: a slot, its number on this host, and,
    for its first rank, addresses to reach           ->    a process starts
                                                     <-    its process id, and where it listens,
                                                           or the addresses without an answer
                                                     <-    said: what a process says
    tell: a message for the process of a slot        ->    passes it on
    world: who has which rank, addresses, secret     ->    tells the members, with a new segment
    stop: a signal for the process of a slot         ->
                                                     <-    ended: how a process has ended
    signal: the end of the job                       ->    ends all processes, and itself
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ringar.job import membership, reach
from ringar.job.tcp import LISTENER_VARIABLE
from ringar.launchers import failures, guard, host_guard
from ringar.launchers.host_guard import Control, HostJob
from ringar.launchers.local import LocalJob
from ringar.launchers.member_sockets import MemberSockets
from ringar.launchers.plan import JobPlan, RankPlan
from ringar.launchers.ranks import Rank


class ElasticHostJob(HostJob):
    """The processes of the slots of one host.

    Args:
        job: the plans of the slots, numbered from 0.
        control: where the launcher's lines come from.
        listen: makes a socket that listens for a process.
        plan: plans so many slots, if the host gets more of them.
    """

    def __init__(
        self,
        job: JobPlan,
        control: Control,
        listen: Callable[[], socket.socket],
        plan: Callable[[int], JobPlan],
    ) -> None:
        super().__init__(job, 0.0, control, None)
        self._listen, self._plan = listen, plan
        self._sockets = MemberSockets(
            self._watch_fd, lambda slot, message: self._answer(slot, said=message)
        )
        self._rank_of_slot: dict[int, Rank] = {}

    def _answer(self, slot: int, **what: object) -> None:
        self._out.line(host_guard.answer({"slot": slot, **what}))

    # What the launcher says

    def _take(self, said: Mapping[str, Any]) -> None:
        if "start" in said:
            if lost := reach.unreached(said["reach"]):
                self._answer(said["start"], unreached=[said["reach"][number] for number in lost])
            else:
                self._start_slot(said["start"], said["local"])
        elif "tell" in said:
            self._sockets.tell(said["tell"], said["message"])
        elif "world" in said:
            self._open_world(said["world"], said["ranks"])
        elif "stop" in said:
            self._stop_slot(self._rank_of_slot[said["stop"]], said["number"])
        else:
            super()._take(said)

    def _start_slot(self, slot: int, local: int) -> None:
        ranks = self.job.ranks if local < len(self.job.ranks) else self._plan(local + 1).ranks
        with self._listen() as listener, self._sockets.opened(slot) as theirs:
            files = {LISTENER_VARIABLE: listener.fileno(), membership.VARIABLE: theirs}
            self._start_rank(replace(ranks[local], rank=slot, files=files))
            self._rank_of_slot[slot] = rank = self.ranks[-1]
            self._answer(slot, started=rank.pid, address=host_guard.text_of(listener))

    def _open_world(self, world: Mapping[str, Any], ranks: Mapping[str, int]) -> None:
        segment = os.memfd_create("ringar-shared-segment")
        hosts = host_guard.file_with(world)
        place = {"generation": world["generation"], "size": len(world["hosts"])}
        for slot, rank in ranks.items():
            message = {"kind": "world", **place, "rank": rank}
            self._sockets.tell(int(slot), message, (segment, hosts))
        os.close(segment)
        os.close(hosts)

    # The job

    def _start(self) -> None:
        super()._start()
        if self._control.has_line():  # which came with the job
            self._on_control()

    def _make_segment(self) -> int:
        return -1  # each world has one of its own

    def _planned(self) -> Sequence[RankPlan]:
        return ()

    def _inherited(self, plan: RankPlan) -> Mapping[str, int]:
        return plan.files

    def _is_running(self) -> bool:
        return not self.signal or super()._is_running()

    def _on_exit(self, rank: Rank, now: float) -> None:
        rank.stderr.drain()
        self._stop_helpers_of(rank)
        self._sockets.hang_up(rank.number)
        if rank.status is not None:
            grace = LocalJob._grace_after(self, rank)
            end = {"ending": failures.ending(rank), "code": rank.status.exit_code, "grace": grace}
            self._answer(rank.number, ended=end, stopped=rank.stopped)

    def _end(self) -> None:
        super()._end()
        self._sockets.close()

    def _report(self) -> None:
        pass  # the launcher does


def make(options: argparse.Namespace) -> ElasticHostJob | None:
    """Take the job from `elastic_spread.py`; None if that has ended.

    Raises:
        UsageError: this host cannot run processes of the job; the message says why.
    """
    control = Control()
    here = host_guard.take(control, options, grows=True)
    if here is None:
        return None

    def plan(slots: int) -> JobPlan:
        hosts = list(here.hosts)
        hosts[here.number] = replace(hosts[here.number], slots=slots)
        return host_guard.plan_of(options, replace(here, hosts=hosts), [{}] * slots)

    return ElasticHostJob(plan(here.slots), control, here.listen, plan)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the processes of this host to their end and return the exit code."""
    options = guard.parser(__doc__).parse_args(arguments)
    return guard.run(lambda: make(options))


if __name__ == "__main__":
    sys.exit(main())
