"""Plan a job on this host, as plain data, before anything is started.

A plan holds the command, the ranks, their CPUs and GPUs, and their environment; `runner.py` runs
it. The errors of a request are found here, so that a bad request starts nothing.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ringar.job import gpus, membership, timeline
from ringar.launchers.errors import UsageError
from ringar.launchers.plan import cpus as cpus_module
from ringar.launchers.plan import gpus as gpus_module
from ringar.launchers.plan.cpus import Cpu
from ringar.launchers.plan.program import Program, resolve
from ringar.launchers.plan.request import Request

#: The most ranks that one host runs, unless it has more CPUs than this.
MAX_LOCAL_RANKS = 64

#: Variables that only the launcher sets; see ringar/job/settings.py for their meaning.
RESERVED = frozenset(
    "RINGAR_" + name
    for name in (
        "RANK",
        "SIZE",
        "LOCAL_RANK",
        "LOCAL_SIZE",
        "CROSS_RANK",
        "CROSS_SIZE",
        "SEGMENT_FD",
        "WORLD_FD",
        "LISTENER_FD",
        "SPREAD",
        "JOB",
        "BOUND_CPUS",
        "RENDEZVOUS_FD",
        "GPU",
        "LAUNCHER_PROCESS",
        "RANK_PROCESS",
    )
)

#: Those and the variables of Horovod that have the place of a rank: ranks inherit none of them, for
#: a process that starts a job may itself be a rank of another one.
NOT_INHERITED = RESERVED | frozenset(
    "HOROVOD_" + name
    for name in (
        "RANK",
        "SIZE",
        "LOCAL_RANK",
        "LOCAL_SIZE",
        "CROSS_RANK",
        "CROSS_SIZE",
        "HOSTNAME",
        "ELASTIC",
    )
)

PREFIX_VARIABLE = "RINGAR_PLACE_PREFIX"
"""Names a prefix, such as `HOROVOD_`, of further variables that tell ranks their place."""


@dataclass(frozen=True)
class RankPlan:
    """One rank: its place in the job, the CPUs that it is bound to, and its GPU (None: any).

    With `by_mpi`, MPI has started the rank and knows its place; the launcher gives it CPUs and GPU.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int = 0
    cross_size: int = 1
    cpus: tuple[int, ...] | None = None
    sharing: int = 1  # how many ranks are bound to these CPUs
    by_mpi: bool = False
    gpu: str | None = None  # as CUDA_VISIBLE_DEVICES names it
    #: Open files that it inherits, by the variable that tells it their number.
    files: Mapping[str, int] = field(default_factory=dict)
    host: str = ""  # as the user names it; "": as it names itself

    def environment(self) -> dict[str, str]:
        """Return the variables that tell this rank its place."""
        variables = {} if self.by_mpi else self._place("RINGAR_")
        if self.cpus is not None:
            # Tells ringar.threads its share of these CPUs, which it need not divide by the local
            # size.
            variables["RINGAR_BOUND_CPUS"] = f"{len(self.cpus) / self.sharing:g}"
        return variables | gpus_module.variables(self.gpu)

    def _place(self, prefix: str) -> dict[str, str]:
        place = {
            "RANK": self.rank,
            "SIZE": self.size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_SIZE": self.local_size,
        }
        if not self.by_mpi:
            place |= {"CROSS_RANK": self.cross_rank, "CROSS_SIZE": self.cross_size}
        return {f"{prefix}{name}": str(value) for name, value in place.items()}

    def place_for_others(self, prefix: str) -> dict[str, str]:
        """Return the variables of another library that tell this rank its place and its host."""
        variables = {**self._place(prefix), f"{prefix}HOSTNAME": self.host or os.uname().nodename}
        return variables | ({f"{prefix}ELASTIC": "1"} if membership.VARIABLE in self.files else {})


@dataclass(frozen=True)
class JobPlan:
    """A whole job: the command that every rank runs, the ranks, and where their output goes."""

    job: str
    command: tuple[str, ...]
    ranks: tuple[RankPlan, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    prefix: bool = True
    output_folder: Path | None = None
    verbose: bool = False
    notice: str = ""  # a message that is shown when the job starts
    kill_grace: float | None = None  # seconds from SIGTERM to SIGKILL, where the user has asked
    max_failures: int = 0  # ranks that may fail while the others go on

    def rank_environment(self, rank: RankPlan, base: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of `rank`, on top of `base`, that of the launcher."""
        merged = {name: value for name, value in base.items() if name not in NOT_INHERITED}
        merged.setdefault("PYTHONUNBUFFERED", "1")
        merged.update(self.environment)
        merged.update(rank.environment())
        if prefix := merged.get(PREFIX_VARIABLE):
            merged.update(rank.place_for_others(prefix))
        merged["RINGAR_JOB"] = self.job
        return merged

    def shell(self) -> str:
        """Return CPUs and command of each rank, a line per rank, as `--dry-run` prints them."""
        lines = []
        for rank in self.ranks:
            where = "any CPU" if rank.cpus is None else f"CPUs {','.join(map(str, rank.cpus))}"
            variables = {**self.environment, **rank.environment()}
            pairs = [f"{name}={value}" for name, value in variables.items()]
            lines.append(f"[{rank.rank}] {where}: {shlex.join(['env', *pairs, *self.command])}")
        return "\n".join(lines)

    def output_path(self, rank: int, stream: str) -> Path | None:
        """Return the file for `stream` of `rank`, named as Horovod does: DIR/rank.03/stderr."""
        if self.output_folder is None:
            return None
        width = len(str(self.ranks[0].size - 1))
        return self.output_folder / f"rank.{rank:0{width}d}" / stream


def make(
    request: Request, num_proc: int, environ: Mapping[str, str], cpus: Sequence[Cpu]
) -> JobPlan:
    """Plan a job on this host.

    Args:
        request: the user's request.
        num_proc: the number of ranks to start.
        environ: the launcher's environment, the source of `-x NAME` and of PATH.
        cpus: the CPUs that may be used.

    Raises:
        UsageError: the request cannot be carried out; the message has the cause and the remedy.
    """
    check_num_proc(num_proc, limit=max(MAX_LOCAL_RANKS, len(cpus)))
    environment = variables(request, environ)
    command = program(request, {**environ, **environment}).command
    check_output_folder(request.output_folder)
    may_lose_ranks = request.min_np is not None or request.max_failures > 0
    sets = cpu_sets(request.bind_to, num_proc, cpus, may_lose_ranks)
    gpu = gpus_module.of_ranks({**environ, **environment}, num_proc)
    names = _host_names(request, num_proc)
    return JobPlan(
        job=new_job_id(),
        command=command,
        ranks=tuple(
            RankPlan(
                r,
                num_proc,
                r,
                num_proc,
                cpus=sets[r],
                sharing=sets.count(sets[r]),
                gpu=gpu[r],
                host=names[r],
            )
            for r in range(num_proc)
        ),
        environment=environment,
        prefix=num_proc > 1 if request.prefix is None else request.prefix,
        output_folder=request.output_folder,
        verbose=request.verbose,
        notice=gpus_module.describe(dict(enumerate(gpu))),
        kill_grace=request.kill_grace,
        max_failures=request.max_failures,
    )


def _host_names(request: Request, num_proc: int) -> list[str]:
    """Return the name of this host for each rank; a script names hosts only later."""
    names = [host.name for host in request.hosts for _ in range(host.slots)][:num_proc]
    last = "" if request.discovery_script else "localhost"
    return names + [(names or [last])[-1]] * (num_proc - len(names))


def new_job_id() -> str:
    """Return a name that no other job has."""
    return os.urandom(8).hex()


def variables(request: Request, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that all ranks get by the user's options.

    Args:
        request: the user's request, of which `-x`, `--gpus`, timeouts and timeline matter.
        environ: the launcher's environment, the source of `-x NAME`.

    Raises:
        UsageError: a variable is not set, or is reserved; the timeline cannot be written.
    """
    settings = _exports(request.exports, environ)
    settings.update(_timeouts(request))
    if request.gpus:
        settings[gpus.MODE_VARIABLE] = request.gpus
    gpus_module.check({**environ, **settings})
    if request.timeline:
        _check_timeline(request.timeline)
        settings[timeline.VARIABLE] = str(request.timeline)
    return settings


def check_num_proc(num_proc: int, limit: int = MAX_LOCAL_RANKS) -> None:
    """Raise `UsageError` unless one host can run `num_proc` ranks."""
    if num_proc < 1:
        raise UsageError(
            f"-np: expected the number of ranks to start, from 1 to {limit}, received {num_proc}; "
            "for example: ringarrun -np 2 train.py"
        )
    if num_proc > limit:
        raise UsageError(
            f"-np: expected at most {limit} ranks on one host, received {num_proc}; "
            "start one rank per core, GPU or NUMA node"
        )


def program(request: Request, environ: Mapping[str, str]) -> Program:
    """Find the program of the ranks.

    Args:
        request: the user's request.
        environ: the environment that the ranks will have.

    Raises:
        UsageError: it is not there, or cannot be run.
    """
    return resolve(request.command, request.module, environ.get("PATH"), environ.get("PYTHONPATH"))


def _exports(exports: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    variables = {}
    for export in exports:
        name, equals, value = export.partition("=")
        if not name or "\0" in export:
            raise UsageError(f"-x: expected NAME or NAME=VALUE, received {export!r}")
        if name in RESERVED:
            raise UsageError(
                f"-x: {name} is set by ringarrun itself for each rank; choose another name"
            )
        if not equals and name not in environ:
            raise UsageError(
                f"-x {name}: expected a variable that is set, but {name} is not; "
                f"set it, or give its value: -x {name}=VALUE"
            )
        variables[name] = value if equals else environ[name]
    return variables


def _timeouts(request: Request) -> dict[str, str]:
    seconds = {
        "RINGAR_START_TIMEOUT": request.start_timeout,
        "RINGAR_DEADLINE": request.deadline,
        "RINGAR_STALL_WARNING": request.stall_warning,
    }
    # Without an option the environment decides, and else the default of the library.
    return {name: f"{value:.12g}" for name, value in seconds.items() if value is not None}


def cpu_sets(
    bind_to: str | None, size: int, cpus: Sequence[Cpu], may_lose_ranks: bool = False
) -> Sequence[tuple[int, ...] | None]:
    """Return the CPUs of each of `size` ranks of one host, for `--bind-to`; None: not bound.

    Where a job may go on without some ranks, they share no CPU unless asked to: those that are left
    could all have the same one.

    Raises:
        UsageError: with `core`, there are fewer CPUs than ranks.
    """
    if bind_to == "core" and size > len(cpus):
        raise UsageError(
            f"--bind-to core: expected at most {len(cpus)} ranks, one per CPU that may be used, "
            f"received {size}; start fewer ranks or choose --bind-to none"
        )
    if bind_to == "numa":
        return cpus_module.whole_nodes(cpus, size)
    if bind_to == "none" or (may_lose_ranks and size > len(cpus)):
        return [None] * size
    if size > len(cpus):
        return cpus_module.shared(cpus, size) or [None] * size
    return cpus_module.split(cpus, size)


def _check_timeline(path: Path) -> None:
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"--timeline-filename: expected a file in a folder to write in, received {str(path)!r}"
        )


def check_output_folder(folder: Path | None) -> None:
    """Make `folder` if it is missing; raise `UsageError` unless it can be written."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--output-filename: expected a folder to write in, received {str(folder)!r}: "
            f"{error.strerror}"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(
            f"--output-filename: expected a folder to write in, but {str(folder)!r} is not writable"
        )
