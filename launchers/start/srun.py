"""Build the command line of SLURM's srun, and check that it can start the ranks of an MPI here.

srun starts the ranks itself and offers them a PMI to find each other: Open MPI needs `pmix`, the
MPICH family `pmi2`. The site chooses which of them its SLURM has. With neither, each rank would be
a job of its own.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

from ringar.launchers.errors import UsageError
from ringar.launchers.start import hydra
from ringar.launchers.start.ask import TIMEOUT, ask
from ringar.launchers.start.command import Command, Start
from ringar.launchers.start.mpi import OPEN_MPI, Mpi


def command(start: Start) -> Command:
    """Return the command that starts the ranks.

    Raises:
        UsageError: srun is not there or cannot start this MPI, or hosts get unequal shares.
    """
    reason = obstacle(start.mpi, start.environ)
    if reason:
        raise UsageError(
            f"--launcher srun: {reason}; choose --launcher mpirun, which works in an allocation "
            "of SLURM, too"
        )
    words = [*basic(start.environ), f"--mpi={pmi(start.mpi)}", f"--ntasks={start.num_proc}"]
    if start.hosts:
        words += _layout(start)
    # The guards bind the ranks. They cannot widen the set of CPUs that srun leaves them.
    words += ["--cpu-bind=none", "--kill-on-bad-exit=1", "--input=0", "--export=ALL"]
    if per_task := start.environ.get("SLURM_CPUS_PER_TASK"):
        words.append(f"--cpus-per-task={per_task}")  # srun ignores the variable since 22.05
    environment: dict[str, str] = {}
    if start.interfaces:
        if start.mpi.family == OPEN_MPI:
            environment["OMPI_MCA_btl_tcp_if_include"] = ",".join(start.interfaces)
        else:
            environment |= hydra.network(start)
    return Command((*words, *start.arguments, *start.program), environment)


def is_there(environ: Mapping[str, str]) -> bool:
    """Return whether this process can call srun: a container within an allocation may lack it."""
    return shutil.which("srun", path=environ.get("PATH")) is not None


def basic(environ: Mapping[str, str]) -> list[str]:
    """Return the first words of every call of srun."""
    words = [shutil.which("srun", path=environ.get("PATH")) or "srun"]
    if "SLURM_STEP_ID" in environ:  # inside a step, srun would wait for the step's CPUs
        words.append("--overlap")
    return words


def pmi(mpi: Mpi) -> str:
    """Return the argument of `srun --mpi` for ranks of `mpi`."""
    return "pmix" if mpi.family == OPEN_MPI else "pmi2"


def obstacle(mpi: Mpi, environ: Mapping[str, str]) -> str:
    """Return the reason why srun cannot start ranks of `mpi`; "" if it can."""
    if not is_there(environ):
        return "expected srun, but it is found nowhere in PATH"
    kind = pmi(mpi)
    # Being listed is not enough: the plugin may lack its library, which shows when it is loaded.
    listed = [*basic(environ), "--mpi=list"]
    trial = [*basic(environ), f"--mpi={kind}", "--ntasks=1", "--nodes=1", "true"]
    for words in (listed, trial) if "SLURM_JOB_ID" in environ else (listed,):
        try:
            result = ask(words, environ)
        except subprocess.TimeoutExpired:
            return f"expected an answer of {' '.join(words)}, received none in {TIMEOUT:.0f} s"
        answer = result.stdout + result.stderr
        if words is listed and kind not in answer.split():
            return f"{mpi} needs srun --mpi={kind}, which this SLURM does not have"
        if words is trial and result.returncode != 0:
            lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
            return f"{mpi} needs srun --mpi={kind}, which does not work here: {lines[:1]}"
    return ""


def _layout(start: Start) -> list[str]:
    """Return the words for the nodes and their ranks: equally many on each, or in blocks."""
    shares = {host.slots for host in start.hosts}
    words = [f"--nodes={len(start.hosts)}"]
    words.append(f"--nodelist={','.join(host.name for host in start.hosts)}")
    if len(shares) == 1:
        words.append(f"--ntasks-per-node={shares.pop()}")
    else:
        words.append("--distribution=block")
    return words
