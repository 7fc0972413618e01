"""Other launchers, and their variables in processes that ringar does not bring together."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: The variables by which launchers of MPI tell the size of a job, and these launchers.
MPI_SIZES = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpirun",
    "PMI_SIZE": "an mpirun or srun that speaks PMI, as MPICH does",
    "SLURM_STEP_NUM_TASKS": "srun",
}

#: Those of other launchers: the number of processes; another variable set with it, the launcher.
_SIZES = {
    "HOROVOD_SIZE": ("HOROVOD_RANK", "horovodrun"),
    "WORLD_SIZE": ("RANK", "torchrun, or another launcher with its variables,"),
    "MV2_COMM_WORLD_SIZE": ("MV2_COMM_WORLD_RANK", "MVAPICH's mpirun_rsh"),
    "JSM_NAMESPACE_SIZE": ("JSM_NAMESPACE_RANK", "jsrun"),
    "JAX_NUM_PROCESSES": ("JAX_PROCESS_ID", "a launcher for JAX"),
    "PADDLE_TRAINERS_NUM": ("PADDLE_TRAINER_ID", "a launcher for PaddlePaddle"),
    "DMLC_NUM_WORKER": ("DMLC_ROLE", "a launcher for MXNet or BytePS"),
}

#: The launcher that tells hosts by name, and how many tasks the job of a scheduler may have.
_TF_CONFIG = "TF_CONFIG"
_SLURM_TASKS = "SLURM_NTASKS"
#: The tasks of a cluster of TF_CONFIG that train; an evaluator and parameter servers do not.
_TRAINING = ("chief", "master", "worker")


@dataclass(frozen=True)
class Start:
    """Describe the start of this process, as variables tell it.

    Attributes:
        origin: the launcher, the number of processes and the variable that tells it.
        size: the number of processes.
        hosts: the hosts of all processes, if they are told.
    """

    origin: str
    size: int
    hosts: tuple[str, ...] = ()

    def command(self, words: Sequence[str]) -> str:
        """Return the command of ringarrun that starts one job of them.

        Args:
            words: the program and its arguments.
        """
        counts = Counter(self.hosts)
        named = ",".join(f"{name}:{count}" for name, count in counts.items())
        where = f"-H {named}" if len(counts) > 1 else f"-np {self.size}"
        return f"ringarrun {where} {shlex.join(words)}"


def of_job(environ: Mapping[str, str]) -> Start | None:
    """Return the start of this process beside others that MPI does not bring together, either.

    Args:
        environ: the environment of a process that is no rank of ringarrun and of no MPI.

    Returns:
        None if it is alone.
    """
    return (
        _of_sizes(environ)
        or _of_tf_config(environ.get(_TF_CONFIG, ""))
        or _of_slurm(environ.get(_SLURM_TASKS, ""))
    )


def of_launcher(environ: Mapping[str, str]) -> Start | None:
    """Return the start of this process, a ringarrun, beside others; None if it is alone."""
    for variable, launcher in MPI_SIZES.items():
        if (size := _number(environ.get(variable, ""))) > 1:
            return _started(launcher, size, variable)
    return _of_sizes(environ)


def warning_of_rank(start: Start) -> str:
    """Return the warning of a process that becomes a job of one rank."""
    words = sys.argv if sys.argv and sys.argv[0] not in ("", "-c") else ["train.py"]
    return (
        f"ringar.init() makes a job of one rank here, which trains alone, although {start.origin}: "
        "ringar does not bring these processes together. Start one job of all of them: "
        f"{start.command(words)}"
    )


def warning_of_launcher(start: Start, words: Sequence[str]) -> str:
    """Return the warning of a ringarrun that is one of several.

    Args:
        start: how it was started.
        words: its arguments.
    """
    return (
        f"{start.origin}, and each ringarrun starts a job of its own, which knows nothing of the "
        "others. For one job of all ranks start ringarrun once, by itself: "
        f"{shlex.join(['ringarrun', *words])}, with all ranks in -np, and other hosts in -H"
    )


def _of_sizes(environ: Mapping[str, str]) -> Start | None:
    for variable, (beside, launcher) in _SIZES.items():
        if beside in environ and (size := _number(environ.get(variable, ""))) > 1:
            return _started(launcher, size, variable)
    return None


def _of_tf_config(text: str) -> Start | None:
    try:
        cluster = json.loads(text)["cluster"]
        tasks = [str(address) for kind in _TRAINING for address in cluster.get(kind, ())]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if len(tasks) < 2:
        return None
    hosts = tuple(address.rpartition(":")[0] or address for address in tasks)
    return Start(f"{_TF_CONFIG} names {len(tasks)} that train", len(tasks), hosts)


def _of_slurm(text: str) -> Start | None:
    tasks = _number(text)
    if tasks < 2:
        return None
    origin = f"SLURM's job has {tasks} tasks ({_SLURM_TASKS}={tasks}), and srun has started none"
    return Start(origin, tasks)


def _started(launcher: str, size: int, variable: str) -> Start:
    return Start(f"{launcher} has started {size} processes ({variable}={size})", size)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
