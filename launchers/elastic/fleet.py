"""The interface between `next_world.py` and the runners of an elastic job's processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ringar.launchers.elastic.roster import Member
from ringar.launchers.plan.hosts import Host
from ringar.launchers.supervise.ranks import Rank


@dataclass(frozen=True)
class End:
    """The end of a process.

    Attributes:
        process: its name in messages: "process 17 on h2", and with its place, once that is
            known: "rank 1 (slot 2, process 17 on h2)".
        code: its exit code, as a shell would report it.
        ending: how it ended: "failed with exit code 3".
        grace: seconds to wait for a rank whose loss this process may only have reported.
        rank: the process itself, if it ran on this host.
        with_host: whether its host, or the way to it, is lost.
    """

    process: str
    code: int
    ending: str
    grace: float = 0.0
    rank: Rank | None = None
    with_host: bool = False


class Fleet(Protocol):
    """Runs the processes in the slots, and passes messages on to them."""

    def slots(self, hosts: Sequence[Host] | None) -> Sequence[int]:
        """Return all slots of `hosts`, in order; None: the hosts that the job began with."""

    def host_of(self, slot: int) -> int:
        """Return the number of the host of a slot."""

    def start(self, slot: int) -> None:
        """Start a process; it gets messages from now on."""

    def stop(self, slot: int, number: int) -> None:
        """Send the process of a slot a signal."""

    def lose(self, slot: int) -> None:
        """Give up the host of a slot, whose process has not ended after SIGKILL."""

    def tell(self, slot: int, message: Mapping[str, Any]) -> None:
        """Pass a message on to the process of a slot, if it can still take one."""

    def open_world(self, generation: int, world: Sequence[Member]) -> None:
        """Tell all members their place in a new world."""

    def end(self, when: float) -> None:
        """End the job then."""

    def note(self, text: str) -> None:
        """Show a message to the user."""

    def say(self, text: str) -> None:
        """Show a message to a user who has asked for details."""
