"""Plan a job over several hosts: one command that starts it, and its environment, as plain data.

mpirun and srun start a guard (`guard.py`) for each rank on every host, which runs the user's
program; without MPI, `spread.py` starts one for all ranks of a host (`host_guard.py`). The
differences between Open MPI, hydra, SLURM and spread are in `openmpi.py`, `hydra.py`, `srun.py` and
`spread.py`, each a function from a `Start` to a `Command`.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ringar.launchers.plan import job_plan
from ringar.launchers.plan.program import Program
from ringar.launchers.plan.request import Request
from ringar.launchers.start import environment, hydra, mpi, openmpi, spread, srun, ssh
from ringar.launchers.start.choose import Choice
from ringar.launchers.start.command import Command, Start
from ringar.launchers.start.mpi import Mpi
from ringar.launchers.supervise import signals

#: Tell ranks that MPI has started them, and how many there are (ringar/job/settings.py).
LAUNCHER_VARIABLE = "RINGAR_LAUNCHER"
SIZE_VARIABLE = "RINGAR_JOB_SIZE"


@dataclass(frozen=True)
class HostsPlan:
    """A job over several hosts, ready to be checked and started.

    Attributes:
        job: its name, which no other job has.
        launcher: "mpirun", "srun" or "ssh".
        start: the hosts, the MPI (`mpi.NONE` with "ssh"), the agent, the guard with the program.
        command: the command that starts it, and the variables that are set for it.
        environment: the whole environment of that command.
        python: the interpreter that all hosts must have.
        program: the user's script, module or program.
        failure_grace: seconds that ranks have for their own errors after one has failed.
        kill_grace: seconds that ranks have to save after a signal; None for the usual 3.
        max_failures: how many ranks may fail while the others go on.
        asked_by: the signal after which guards stop their ranks.
        passes_on: the signals for ranks that come to the guards.
    """

    job: str
    launcher: str
    start: Start
    command: Command
    environment: Mapping[str, str] = field(repr=False)
    python: str
    program: Program
    failure_grace: float
    verbose: bool = False
    kill_grace: float | None = None
    max_failures: int = 0
    asked_by: int = signals.ASK
    passes_on: tuple[int, ...] = signals.USER

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.start.num_proc

    def shell(self) -> str:
        """Return the shell command for the same job, as `--dry-run` prints it."""
        guard = self.command.words.index("--") + 1
        words = self.command.words
        groups = [f"{name}={value}" for name, value in self.command.environment.items()]
        lines = [shlex.join(["env", *groups[:1]]), *(shlex.quote(group) for group in groups[1:])]
        start = words.index(self.python, 1)
        lines += [shlex.join(words[:start]), shlex.join(words[start:guard])]
        return " \\\n  ".join([*lines, shlex.join(words[guard:])])


def make(request: Request, choice: Choice, environ: Mapping[str, str]) -> HostsPlan:
    """Plan a job of mpirun or srun, or of ringar's own `spread.py`.

    Args:
        request: the user's request.
        choice: the launcher and the hosts.
        environ: the launcher's environment.

    Raises:
        UsageError: the request cannot be carried out; the message says why and what to do.
    """
    job = job_plan.new_job_id()
    added = job_plan.variables(request, environ)
    program = job_plan.program(request, {**environ, **added})
    job_plan.check_output_folder(request.output_folder)
    uses_mpi = choice.launcher != "ssh"
    if uses_mpi:
        added |= {LAUNCHER_VARIABLE: "mpi", SIZE_VARIABLE: str(choice.num_proc)}
    base = {name: v for name, v in environ.items() if name not in job_plan.NOT_INHERITED}
    base.setdefault("PYTHONUNBUFFERED", "1")
    ranks = {**base, **added}
    python = mpi.interpreter(program.command, ranks.get("PATH"))
    library = mpi.of_mpi4py(python, ranks) if uses_mpi else mpi.NONE
    launcher = choice.launcher
    if launcher == "srun" and choice.second is not None and srun.obstacle(library, ranks):
        launcher = choice.second
    agent = _agent(request, choice, environ, launcher)
    of_host = "start.host_guard" if request.min_np is None else "elastic.guard"
    guard = f"ringar.launchers.{'start.guard' if uses_mpi else of_host}"
    mpirun = mpi.find_mpirun(library, python, ranks) if launcher == "mpirun" else None
    asked_by, passes_on = _signals(launcher, mpirun, request.kill_grace)
    start = Start(
        program=(
            *_guard(request, choice, job, asked_by, [python, "-m", guard]),
            *program.command,
        ),
        num_proc=choice.num_proc,
        hosts=choice.hosts,
        exported=environment.exported(ranks, added, request.environment),
        mpi=library,
        mpirun=mpirun,
        agent=agent,
        interfaces=request.interfaces,
        arguments=request.mpi_args,
        environ=ranks,
    )
    command = _build(start, launcher)
    added.setdefault("PYTHONUNBUFFERED", ranks["PYTHONUNBUFFERED"])
    command = Command(command.words, {**added, **command.environment})
    return HostsPlan(
        job=job,
        launcher=launcher,
        start=start,
        command=command,
        environment={**ranks, **command.environment},
        python=python,
        program=program,
        failure_grace=request.failure_grace,
        kill_grace=request.kill_grace,
        max_failures=request.max_failures,
        asked_by=asked_by,
        passes_on=passes_on,
        verbose=request.verbose,
    )


def _build(start: Start, launcher: str) -> Command:
    if launcher == "ssh":
        return spread.command(start)
    if launcher == "srun":
        return srun.command(start)
    return openmpi.command(start) if start.mpi.family == mpi.OPEN_MPI else hydra.command(start)


def _agent(
    request: Request, choice: Choice, environ: Mapping[str, str], launcher: str
) -> ssh.Agent | None:
    """Return the agent that reaches the hosts; None if srun does, the default in SLURM."""
    options = (request.ssh_command, request.ssh_port, request.ssh_identity)
    has_options = any(options) or environ.get(ssh.VARIABLE)
    by_slurm = choice.scheduler == "SLURM" and srun.is_there(environ)
    if launcher == "srun" or (by_slurm and not has_options):
        return None
    return ssh.agent(*options, environ, choice.scheduler)


def _signals(
    launcher: str, mpirun: Mpi | None, kill_grace: float | None
) -> tuple[int, tuple[int, ...]]:
    """Return the signal that asks guards to stop, and those for ranks that mpirun passes on."""
    is_hydra = mpirun is not None and mpirun.family != mpi.OPEN_MPI
    if launcher == "ssh":
        return signals.ASK, (*signals.USER, *signals.JOB_CONTROL)
    if mpirun is None or (mpirun.major >= 5 and not is_hydra):
        return signals.ASK, signals.USER
    usable = (signal.SIGUSR1,) if is_hydra else signals.USER
    ask_signals = () if kill_grace is None else (signals.ASK_OF_OTHERS,)
    return signals.ASK_OF_OTHERS, tuple(number for number in usable if number not in ask_signals)


def _guard(
    request: Request, choice: Choice, job: str, asked_by: int, words: list[str]
) -> list[str]:
    words = [*words, "--job", job]
    if request.prefix or (request.prefix is None and choice.num_proc > 1):
        words.append("--prefix")
    if request.output_folder is not None:
        words += ["--output-filename", str(Path(request.output_folder).absolute())]
    if request.bind_to is not None:
        words += ["--bind-to", request.bind_to]
    if request.kill_grace is not None:
        words += ["--kill-grace", f"{request.kill_grace:.12g}"]
        if asked_by != signals.ASK:
            words += ["--asked-by", str(asked_by)]
    if request.max_failures:
        words += ["--max-failures", str(request.max_failures)]
    return [*words, "--grace", f"{request.failure_grace:.12g}", "--"]


def working_folder() -> str:
    """Return the folder that ranks start in, on every host."""
    return os.getcwd()
