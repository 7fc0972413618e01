"""Choose the launcher, the hosts and the number of ranks.

`auto` prefers the hosts that the user has named to those of the scheduler's allocation, and these
to this host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ringar.launchers.errors import UsageError
from ringar.launchers.plan import scheduler_hosts
from ringar.launchers.plan.hosts import Host, fill, is_this_host
from ringar.launchers.plan.request import Request
from ringar.launchers.start import mpi, srun

LAUNCHERS = ("auto", "local", "ssh", "mpirun", "srun")
LINKS = ("auto", "tcp", "mpi")


@dataclass(frozen=True)
class Choice:
    """The choice for a job: `launcher` is "local", "ssh", "mpirun" or "srun".

    With "ssh" the ranks need no MPI: ringarrun starts them through ssh, or through srun in an
    allocation of SLURM, and they reach each other by TCP.

    `hosts` holds the ranks that each host gets, in order. It is empty where srun asks the
    scheduler for hosts itself. `scheduler` is None outside of allocations. `second` is the launcher
    to take if this one cannot start the MPI that is there.
    """

    launcher: str
    num_proc: int
    hosts: tuple[Host, ...] = ()
    scheduler: str | None = None
    second: str | None = None


def choose(request: Request, environ: Mapping[str, str]) -> Choice:
    """Choose the launcher and lay the ranks out.

    Raises:
        UsageError: the launcher cannot serve the hosts, there are fewer slots than ranks, or the
            number of ranks is unknown.
    """
    allocation = scheduler_hosts.find(environ) if request.launcher != "local" else None
    hosts, source = request.hosts, request.source
    if not hosts and allocation is not None:
        hosts, source = allocation.hosts, f"of the {allocation.scheduler} allocation"
    scheduler = allocation.scheduler if allocation else None
    launcher, second = request.launcher, None
    layout = fill(hosts, request.num_proc, source) if hosts else ()
    if launcher == "auto":
        by_slurm = scheduler == "SLURM" and not request.hosts and srun.is_there(environ)
        launcher, second = _automatic(request, layout, by_slurm)
    elif launcher == "srun" and request.link == "tcp":
        launcher = "ssh"
    _check_link(request, launcher)
    if launcher == "ssh":
        _check_without_mpi(request)
    elif launcher == "local":
        _check_local(request, layout)
    elif launcher == "srun":
        _refuse(
            _of_agent(request),
            "expected a job whose hosts are reached through ssh or in its place, but srun reaches "
            "those of this one",
        )
    num_proc = sum(host.slots for host in layout) if layout else request.num_proc
    if num_proc is None:
        raise UsageError(
            "expected -np N, the number of ranks to start, received none; "
            + ("options of ringarrun come before the program, " if _misplaced(request) else "")
            + "for example: ringarrun -np 2 train.py"
        )
    if launcher in ("ssh", "mpirun") and not layout:
        layout = (Host("localhost", num_proc),)
    return Choice(launcher, num_proc, layout, scheduler, second)


def _misplaced(request: Request) -> bool:
    """Return whether `-np` stands behind the program, as one of its arguments."""
    return not {"-np", "-n", "--num-proc"}.isdisjoint(request.command)


def _automatic(request: Request, hosts: tuple[Host, ...], by_slurm: bool) -> tuple[str, str | None]:
    if not by_slurm and all(is_this_host(host.name) for host in hosts):
        return "local", None
    if request.link == "tcp":
        return "ssh", None
    if by_slurm:
        return "srun", "mpirun"
    uses_mpi = request.link == "mpi" or request.mpi_args or mpi.has_fast_network()
    return ("mpirun" if uses_mpi else "ssh"), None


def _check_link(request: Request, launcher: str) -> None:
    """Raise `UsageError` if the ranks of a launcher cannot have the link that is asked for."""
    links = {"mpirun": "mpi", "srun": "mpi", "ssh": "tcp", "local": ""}
    if request.link not in ("auto", links[launcher]):
        reason = (
            f"--launcher {launcher} starts ranks whose link is {links[launcher]}"
            if links[launcher]
            else "ranks of one host need no link"
        )
        raise UsageError(f"--link {request.link}: {reason}; leave one of the two out")


def _check_without_mpi(request: Request) -> None:
    if request.mpi_args:
        raise UsageError(
            "--mpi-args: expected a job of mpirun or srun, but the ranks of this one are started "
            "without MPI; leave it out, or choose --link mpi"
        )


def _check_local(request: Request, hosts: tuple[Host, ...]) -> None:
    remote_hosts = [host.name for host in hosts if not is_this_host(host.name)]
    if remote_hosts:
        raise UsageError(
            "--launcher local: expected hosts that are this one, received "
            f"{', '.join(remote_hosts)}; leave --launcher out, or choose mpirun"
        )
    options = {
        "--mpi-args": request.mpi_args,
        "--network-interface": request.interfaces,
        **_of_agent(request),
    }
    _refuse(
        options,
        "expected a job of mpirun or srun, but the ranks of this one are started without MPI",
    )


def _of_agent(request: Request) -> dict[str, object]:
    """Return the options for the way in which mpirun reaches other hosts."""
    return {
        "-p": request.ssh_port,
        "-i": request.ssh_identity,
        "--ssh-command": request.ssh_command,
    }


def _refuse(options: Mapping[str, object], reason: str) -> None:
    """Raise `UsageError` if any of `options` is given, since it would have no effect."""
    names = [name for name, value in options.items() if value]
    if names:
        raise UsageError(
            f"{', '.join(names)}: {reason}; leave {'it' if len(names) == 1 else 'them'} out, or "
            "choose --launcher mpirun"
        )
