"""A job on processes that a cluster manager has started: actors of Ray, tasks of Spark.

    the caller: Broker, Pool                    on each host, from the manager: cluster_member.py
        ^                                               ^  runs commands on its host
        | cluster_agent.py, in the place of ssh          v
      ringarrun ----------------------------------->  host_guard.py -> ranks (worker.py)

The manager starts a member for each rank, which holds the CPUs and GPUs of that rank, and connects
to the broker. The members of a host make one host of the job. The launcher reaches it by a program
in the place of ssh: that connects to the broker, too, which lets the first member of the host run
the command, and copies what both say. So ranks are started, watched and ended as in every job over
several hosts.

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
from types import TracebackType

from ringar.errors import DeadlineError
from ringar.launchers.hosts import Host
from ringar.launchers.pool import Pool
from ringar.launchers.rendezvous import Meeting
from ringar.launchers.spread import CLUSTER_AGENT

_TICK = 0.1


@dataclass(frozen=True)
class Member:
    """A process of the cluster manager.

    Attributes:
        index: its number, from 0.
        host: the address of its host.
        gpus: the GPUs that it may use, as in CUDA_VISIBLE_DEVICES; None if nothing is said of them.
        control: the connection for commands.
    """

    index: int
    host: str
    gpus: str | None
    control: Connection


class Broker(Meeting):
    """Bring together the agents of the launcher and the members of their hosts.

    Args:
        size: the number of members.
    """

    def __init__(self, size: int) -> None:
        super().__init__([], local=False)
        self._addresses.append("127.0.0.1")
        self._size = size
        self._changed = threading.Condition()
        self._members: dict[int, Member] = {}
        self._numbers = itertools.count()
        self._agents: dict[int, tuple[Connection, threading.Event]] = {}  # that wait for a member

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        with self._changed:
            self._size = -1  # no others are taken
            members = list(self._members.values())
        for member in members:
            with contextlib.suppress(OSError):  # ends the member's `recv`
                socket.socket(fileno=os.dup(member.control.fileno())).shutdown(socket.SHUT_RDWR)

    def wait(self, seconds: float, check: Callable[[], None]) -> tuple[Host, ...]:
        """Wait for all members; return their hosts, in the order of the first member of each.

        Args:
            seconds: how long.
            check: called now and then; raises if they will not come.

        Raises:
            DeadlineError: members are missing after that time.
        """
        end = time.monotonic() + seconds
        with self._changed:
            while len(self._members) < self._size and time.monotonic() < end:
                self._changed.wait(_TICK)
                check()
            if len(self._members) < self._size:
                raise DeadlineError(
                    f"expected {self._size} processes of the cluster within {seconds:g} s, "
                    f"received {len(self._members)}; see what else runs there, and whether they "
                    f"can connect to this host ({', '.join(self._addresses)})"
                )
        names = [self._members[index].host for index in range(self._size)]
        return tuple(Host(name, names.count(name)) for name in dict.fromkeys(names))

    def serve(self, connection: Connection) -> None:
        """Serve a member, an agent, or what a member runs for it."""
        said = json.loads(connection.recv_bytes())
        if "member" in said:
            self._serve_member(Member(said["member"], said["host"], said["gpus"], connection))
        elif "agent" in said:
            self._serve_agent(connection, said["agent"], said["command"])
        else:
            self._join(connection, said["run"])

    def _serve_member(self, member: Member) -> None:
        with self._changed:
            if self._size < 0:
                return
            self._members[member.index] = member
            self._changed.notify_all()
        with contextlib.suppress(EOFError, OSError):
            member.control.recv_bytes()  # it says nothing more, and ends with its process

    def _serve_agent(self, agent: Connection, host: str, command: str) -> None:
        members = [one for _, one in sorted(self._members.items()) if one.host == host]
        if not members:
            return  # the agent says that the way has ended
        number, joined = next(self._numbers), threading.Event()
        self._agents[number] = agent, joined
        gpus = [one.gpus for one in members if one.gpus is not None]
        order = {"run": number, "command": command, "gpus": ",".join(filter(None, gpus))}
        if not gpus:
            del order["gpus"]
        members[0].control.send_bytes(json.dumps(order).encode())
        joined.wait()

    def _join(self, member: Connection, number: int) -> None:
        """Copy what an agent and a member say, up to the end of both."""
        agent, joined = self._agents.pop(number)
        back = threading.Thread(target=_copy, args=(agent, member), daemon=True)
        back.start()
        _copy(member, agent)
        back.join()
        joined.set()


def _copy(source: Connection, target: Connection) -> None:
    """Copy bytes up to the end of `source`, which then is that of `target`."""
    with contextlib.suppress(OSError):
        while data := os.read(source.fileno(), 1 << 16):
            view = memoryview(data)
            while view:
                view = view[os.write(target.fileno(), view) :]
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(target.fileno())) as end:
        end.shutdown(socket.SHUT_WR)


class Cluster:
    """A job on members, as a context: `variable` is for them, `start` waits for them.

    Args:
        size: the number of ranks, one for each member.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._stack = contextlib.ExitStack()
        self._broker = self._stack.enter_context(Broker(size))
        self.pool: Pool | None = None

    @property
    def variable(self) -> str:
        """What `cluster_member.serve` needs."""
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
        hosts = self._broker.wait(seconds, check)
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ringar-")))
        address = folder / "broker"
        address.touch(mode=0o600)
        address.write_text(self.variable)
        agent = f"{sys.executable} -m {CLUSTER_AGENT} {address}"
        words = ["-H", ",".join(map(str, hosts)), "--launcher", "ssh", "--ssh-command", agent]
        names = [host.name for host in hosts]
        words += ["--bind-to", "none", *options]  # the manager shares out the CPUs
        self.pool = self._stack.enter_context(Pool(words, self.size, names, env))
        return self.pool

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
