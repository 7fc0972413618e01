"""The program that runs a command on another host: ssh, or what takes its place.

It is called as `PROGRAM [options] HOST COMMAND`, by the check of the hosts as well as by mpirun, so
that what has been checked is what is used. `--ssh-command` or RINGAR_SSH name another one: a
scheduler's own (`blaunch`, `pbs_tmrsh`), or a script.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringar.launchers.errors import UsageError

VARIABLE = "RINGAR_SSH"

#: Seconds for a connection, in the check before the start and in mpirun.
CONNECT_TIMEOUT = 10

#: How schedulers start a program on a host of an allocation, where there may be no ssh.
_OF_SCHEDULER = {"LSF": "blaunch", "PBS": "pbs_tmrsh"}


@dataclass(frozen=True)
class Agent:
    """How to reach another host: the program, and what it is told before the host's name."""

    program: tuple[str, ...] = ("ssh",)
    options: tuple[str, ...] = ()

    def command(self, host: str, remote: Sequence[str]) -> list[str]:
        """The command that runs `remote`, words that the other host's shell will see quoted."""
        return [*self.program, *self.options, host, shlex.join(remote)]

    def __str__(self) -> str:
        return shlex.join([*self.program, *self.options])


def agent(
    command: str,
    port: int | None,
    identity: Path | None,
    environ: Mapping[str, str],
    scheduler: str | None = None,
) -> Agent:
    """The agent for a job.

    Args:
        command: that of `--ssh-command`; "" for RINGAR_SSH, the scheduler's program or ssh.
        port: that of `-p`.
        identity: the file of `-i`.
        environ: the launcher's environment.
        scheduler: whose allocation this is, if it is one.

    Raises:
        UsageError: there is no such program, or an option that mpirun could not pass on.
    """
    path = environ.get("PATH")
    text = command or environ.get(VARIABLE, "")
    own = _OF_SCHEDULER.get(scheduler or "", "")
    if not text:
        text = own if own and shutil.which(own, path=path) else "ssh"
    words = shlex.split(text)
    found = shutil.which(words[0], path=path) if words else None
    if found is None:
        raise UsageError(
            f"{text or '--ssh-command'}: expected a program that runs commands on other hosts, "
            "but it is found nowhere in PATH; install ssh, or name another: --ssh-command PROGRAM"
        )
    # By its path: mpirun looks only in its own PATH, and nothing shall depend on the folder.
    program = (os.path.abspath(found), *words[1:])
    options: list[str] = []
    if os.path.basename(words[0]) == "ssh":
        # Nobody is there to answer a question.
        options += ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_TIMEOUT}"]
    if port is not None:
        options += ["-p", str(port)]
    if identity is not None:
        options += ["-i", str(_identity(identity))]
    for word in (*program, *options):
        if len(word.split()) != 1:  # Open MPI and hydra cut their arguments at blanks
            raise UsageError(
                f"expected an ssh command and options without blanks, received {word!r}; "
                "give the file another name, or write a script for --ssh-command"
            )
    return Agent(program, tuple(options))


def _identity(path: Path) -> Path:
    path = path.expanduser().absolute()
    if not path.is_file():
        raise UsageError(f"-i: expected a file with a private key, received {str(path)!r}")
    return path
