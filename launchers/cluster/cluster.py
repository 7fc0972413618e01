"""A job on processes that a cluster manager has started: actors of Ray, tasks of Spark.

    the caller: Broker, Pool                    on each host, from the manager: member.py
        ^                                               ^  runs commands on its host
        | agent.py, in the place of ssh          v
      ringarrun ----------------------------------->  host_guard.py -> ranks (worker.py)

The manager starts a member for each rank. A member holds the rank's CPUs and GPUs, and connects to
the broker. The members of a host make one host of the job. The launcher reaches it through
`agent.py` in the place of ssh. The agent connects to the broker, too, which lets the first member
of the host run the command, and copies the messages of both. So ranks are started, watched and
ended as in every job over several hosts.

Messages are authenticated by a key, and not encrypted, like those of the managers themselves.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from ringar.errors import DeadlineError
from ringar.launchers.function.pool import Pool
from ringar.launchers.function.rendezvous import Meeting
from ringar.launchers.plan import addresses
from ringar.launchers.plan.hosts import Host
from ringar.launchers.start.spread import CLUSTER_AGENT

_TICK = 0.1
_SETTLE = 3.0  # seconds for more members than are needed, after the last one that has come


@dataclass(frozen=True)
class Member:
    """A process of the cluster manager.

    Attributes:
        index: its number, from 0.
        host: the address of its host.
        gpus: the GPUs that it may use, as in CUDA_VISIBLE_DEVICES; None if nothing is said of them.
        control: the connection for commands.
        is_alone: whether it is a host of its own in the job, wherever it runs.
    """

    index: int
    host: str
    gpus: str | None
    control: Connection
    is_alone: bool = False

    @property
    def host_name(self) -> str:
        """The name of its host in the job."""
        return f"{self.index}@{self.host}" if self.is_alone else self.host


class Broker(Meeting):
    """Bring together the agents of the launcher and the members of their hosts.

    Args:
        come_and_go: whether members come and go while the job runs. Each is then a host of its own
            in the job, so that a rank ends with its member and with no other.
    """

    def __init__(self, *, come_and_go: bool = False) -> None:
        super().__init__([], local=False)
        self._addresses.append(addresses.loopback())
        self._come_and_go, self._is_closed = come_and_go, False
        self._change = threading.Condition()
        self._changed_at = 0.0
        self._members: dict[int, Member] = {}
        self._numbers = itertools.count()
        self._agents: dict[int, tuple[Connection, threading.Event]] = {}  # that wait for a member

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        with self._change:
            self._is_closed = True  # no others are taken
            self._change.notify_all()
            members = list(self._members.values())
        for member in members:
            with contextlib.suppress(OSError):  # ends the member's `recv`
                socket.socket(fileno=os.dup(member.control.fileno())).shutdown(socket.SHUT_RDWR)

    def wait(self, least: int, most: int, seconds: float, check: Callable[[], None]) -> None:
        """Wait for `most` members, or until there are `least` and no others come for a while.

        Args:
            least: without so many there is no job.
            most: how many are wanted.
            seconds: how long.
            check: called now and then; raises if they will not come.

        Raises:
            DeadlineError: members are missing after that time.
        """
        end = time.monotonic() + seconds
        with self._change:
            while not self._are_enough(least, most):
                if time.monotonic() >= end:
                    raise DeadlineError(
                        f"expected {least} processes of the cluster within {seconds:g} s, "
                        f"received {len(self._members)}; see what else runs there, and whether "
                        f"they can connect to this host ({', '.join(self._addresses)})"
                    )
                self._change.wait(_TICK)
                check()

    def _are_enough(self, least: int, most: int) -> bool:
        have_settled = time.monotonic() - self._changed_at > _SETTLE
        return len(self._members) >= (least if have_settled else most)

    def hosts(self) -> tuple[Host, ...]:
        """Return the hosts of the members, in the order of the first member of each."""
        with self._change:
            names = [member.host_name for _, member in sorted(self._members.items())]
        return tuple(Host(name, names.count(name)) for name in dict.fromkeys(names))

    def await_change(self, hosts: Sequence[Host]) -> bool:
        """Wait until the hosts are no longer these; return False at the end of the broker."""
        with self._change:
            while not self._is_closed and self.hosts() == tuple(hosts):
                self._change.wait()
            return not self._is_closed

    def serve(self, connection: Connection) -> None:
        """Serve a member, an agent, or the command that a member runs for an agent."""
        hello = json.loads(connection.recv_bytes())
        if "member" in hello:
            host = hello["host"] or _peer(connection)
            gpus, is_alone = hello["gpus"], self._come_and_go
            self._serve_member(Member(hello["member"], host, gpus, connection, is_alone))
        elif "agent" in hello:
            self._serve_agent(connection, hello["agent"], hello["command"])
        else:
            self._join(connection, hello["run"])

    def _serve_member(self, member: Member) -> None:
        with self._change:
            if self._is_closed:
                return
            self._members[member.index] = member
            self._note_change()
        with contextlib.suppress(EOFError, OSError):
            member.control.recv_bytes()  # it says nothing more, and ends with its process
        with self._change:
            if self._members.get(member.index) is member:  # no other has come in its place
                del self._members[member.index]
                self._note_change()

    def _note_change(self) -> None:
        self._changed_at = time.monotonic()
        self._change.notify_all()

    def _serve_agent(self, agent: Connection, host: str, command: str) -> None:
        with self._change:
            numbers = sorted(self._members)
            members = [self._members[number] for number in numbers]
        members = [member for member in members if member.host_name == host]
        if not members:
            return  # the agent says that the way has ended
        number, joined = next(self._numbers), threading.Event()
        self._agents[number] = agent, joined
        order: dict[str, object] = {"run": number, "command": command}
        if any(member.gpus is not None for member in members):
            order["gpus"] = [member.gpus or "" for member in members]
        members[0].control.send_bytes(json.dumps(order).encode())
        joined.wait()

    def _join(self, member: Connection, number: int) -> None:
        """Copy the messages of an agent and a member, up to the end of both."""
        agent, joined = self._agents.pop(number)
        back = threading.Thread(target=_copy, args=(agent, member), daemon=True)
        back.start()
        _copy(member, agent)
        back.join()
        joined.set()


def _peer(connection: Connection) -> str:
    """Return the address from which a process has connected."""
    with socket.socket(fileno=os.dup(connection.fileno())) as endpoint:
        return str(endpoint.getpeername()[0]).removeprefix("::ffff:")  # IPv4 at a socket of both


def _copy(source: Connection, target: Connection) -> None:
    """Copy bytes up to the end of `source`, then end `target`, too."""
    with contextlib.suppress(OSError):
        while data := os.read(source.fileno(), 1 << 16):
            view = memoryview(data)
            while view:
                view = view[os.write(target.fileno(), view) :]
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(target.fileno())) as end:
        end.shutdown(socket.SHUT_WR)


def through(broker: Broker, folder: Path) -> list[str]:
    """Return the options of `ringarrun` by which it reaches the hosts through the broker.

    Args:
        broker: the broker.
        folder: for a file that only this user can read.
    """
    address = folder / "broker"
    address.touch(mode=0o600)
    address.write_text(broker.variable)
    agent = f"{sys.executable} -m {CLUSTER_AGENT} {address}"
    # The manager shares out the CPUs.
    return ["--launcher", "ssh", "--ssh-command", agent, "--bind-to", "none"]


class Cluster:
    """A job on members, as a context: `variable` is for them, `start` waits for them.

    Args:
        size: the number of ranks, one for each member.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._stack = contextlib.ExitStack()
        self._broker = self._stack.enter_context(Broker())
        self.pool: Pool | None = None

    @property
    def variable(self) -> str:
        """The argument `variable` of `member.serve`."""
        return self._broker.variable

    def start(
        self,
        env: Mapping[str, str],
        options: Sequence[str],
        seconds: float,
        check: Callable[[], None] = lambda: None,
    ) -> Pool:
        """Wait for the members, and start the ranks.

        Args:
            env: variables to set for the ranks.
            options: further options of `ringarrun`.
            seconds: for the members to connect.
            check: called while they do; raises if they will not.

        Raises:
            DeadlineError: members are missing after that time.
            ValueError: an option is wrong.
        """
        self._broker.wait(self.size, self.size, seconds, check)
        hosts = self._broker.hosts()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ringar-")))
        words = ["-H", ",".join(map(str, hosts)), *through(self._broker, folder), *options]
        names = [host.name for host in hosts]
        self.pool = self._stack.enter_context(Pool(words, self.size, names, env))
        return self.pool

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
