"""An elastic job on processes of a cluster manager that come and go.

The members are those of `cluster.py`, each a host of its own, so that a rank is lost with its
member and with no other; ranks talk by TCP, also inside of a machine. A host file lists the members
for the launcher. It is written again whenever a member is lost or joins, and the launcher reads it
again as it does with every host file. Everything else is as in an elastic job over several hosts.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringar.job.threads import INTER_OP_VARIABLE, INTRA_OP_VARIABLE
from ringar.launchers.cluster.cluster import Broker, through
from ringar.launchers.function import outcomes
from ringar.launchers.function.run import call_elastic
from ringar.launchers.plan.hosts import Host


@dataclass(frozen=True)
class Limits:
    """The numbers of ranks of a job, and how long it waits for them.

    Attributes:
        least: the job goes on while so many are left.
        most: as many as there may be.
        reset_limit: how often the ranks may change; None for any number.
        timeout: seconds to wait for `least` ranks, at the beginning and later.
    """

    least: int
    most: int
    reset_limit: int | None = None
    timeout: float = 600.0

    def options(self) -> list[str]:
        """Return the options of `ringarrun`."""
        words = ["--min-np", str(self.least), "--max-np", str(self.most)]
        words += ["--elastic-timeout", f"{self.timeout:g}"]
        if self.reset_limit is not None:
            words += ["--reset-limit", str(self.reset_limit)]
        return words


def threads(cpus: float) -> dict[str, str]:
    """Return the thread variables of a rank with so many CPUs; it does not know its neighbors."""
    number = max(1, int(cpus))
    # One thread would let an operation that waits stall the input pipeline as well.
    return {INTRA_OP_VARIABLE: str(number), INTER_OP_VARIABLE: str(max(2, number))}


class ElasticCluster:
    """Elastic jobs on members, as a context: `variable` is for them, `wait` waits for them.

    Args:
        limits: the numbers of ranks.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._stack = contextlib.ExitStack()
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ringar-"))
        self._folder = Path(folder)
        self._file, self._lock = self._folder / "hosts", threading.Lock()
        self._broker = self._stack.enter_context(Broker(come_and_go=True))
        threading.Thread(target=self._follow, daemon=True).start()

    @property
    def variable(self) -> str:
        """The argument `variable` of `member.serve`."""
        return self._broker.variable

    def wait(self, most: int, seconds: float, check: Callable[[], None] = lambda: None) -> None:
        """Wait until there are members enough to begin with.

        Args:
            most: so many end the wait; fewer do if they suffice and no others come for a while.
            seconds: how long.
            check: called meanwhile; raises if they will not come.

        Raises:
            DeadlineError: members are missing after that time.
        """
        self._broker.wait(self._limits.least, most, seconds, check)

    def call(
        self,
        function: Callable[..., Any],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        *,
        env: Mapping[str, str],
        options: Sequence[str],
        timeout: float | None = None,
    ) -> list[Any]:
        """Call a function in an elastic job; return the results of ranks that come to the end.

        Args:
            function: the function that each process calls when it joins.
            args: its positional arguments.
            kwargs: its keyword arguments.
            env: variables to set for the ranks.
            options: further options of `ringarrun`.
            timeout: seconds after which the job is ended.

        Raises:
            DeadlineError: it has not ended within `timeout`.
            RankError: it could not go on; the message says why.
            Exception: an error of the function on all ranks.
        """
        message = outcomes.message(function, args, kwargs)
        self._write()  # the thread may be behind
        words = ["--hostfile", str(self._file), *through(self._broker, self._folder)]
        words += self._limits.options()
        exported = [word for name in env for word in ("-x", name)]
        words += [*options, *exported, "-m", "ringar.launchers.function.worker"]
        return call_elastic(words, message, env, timeout)

    def _follow(self) -> None:
        """Write the host file again whenever members have come or gone."""
        hosts: Sequence[Host] = ()
        while self._broker.await_change(hosts):
            with contextlib.suppress(FileNotFoundError):  # the folder goes with the cluster
                hosts = self._write()

    def _write(self) -> Sequence[Host]:
        """Write the hosts, and return them; without any, the file stays as it is."""
        with self._lock:
            hosts = self._broker.hosts()
            if hosts:
                new = self._file.with_suffix(".new")
                new.write_text("".join(f"{host}\n" for host in hosts))
                os.replace(new, self._file)
            return hosts

    def __enter__(self) -> ElasticCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
