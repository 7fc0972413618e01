"""Find the agent, the program that runs a command on another host: ssh, or one in its place.

Both the check of the hosts and mpirun call it as `PROGRAM [options] HOST COMMAND`, so the job uses
what the check has tried. `--ssh-command` or RINGAR_SSH name another program: a scheduler's own
(`blaunch`, `pbs_tmrsh`), or a script.
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
    """The program that reaches another host, and its options, which precede the host's name."""

    program: tuple[str, ...] = ("ssh",)
    options: tuple[str, ...] = ()

    def command(self, host: str, remote: Sequence[str]) -> list[str]:
        """Return the command that runs `remote`, quoted for the shell of the other host."""
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
    """Return the agent for a job.

    Args:
        command: that of `--ssh-command`; "" for RINGAR_SSH, the scheduler's program or ssh.
        port: that of `-p`.
        identity: the file of `-i`.
        environ: the launcher's environment.
        scheduler: the scheduler of the allocation; None outside of any.

    Raises:
        UsageError: there is no such program, or mpirun could not pass an option on.
    """
    path = environ.get("PATH")
    text = command or environ.get(VARIABLE, "")
    substitute = _OF_SCHEDULER.get(scheduler or "", "")
    if not text:
        text = substitute if substitute and shutil.which(substitute, path=path) else "ssh"
    words = shlex.split(text)
    location = shutil.which(words[0], path=path) if words else None
    if location is None:
        slurm = "; make srun visible in the container" if scheduler == "SLURM" else ""
        raise UsageError(
            f"{text or '--ssh-command'}: expected a program that runs commands on other hosts, "
            "but it is found nowhere in PATH; install ssh, or name another: --ssh-command PROGRAM"
            f"{slurm}"
        )
    # As an absolute path: mpirun would look it up in its own PATH, from its own folder.
    program = (os.path.abspath(location), *words[1:])
    options: list[str] = []
    if os.path.basename(words[0]) == "ssh":
        # ssh must not ask questions: nobody would answer.
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
