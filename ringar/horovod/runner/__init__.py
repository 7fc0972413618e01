"""Start jobs: `run` calls a function on ranks, and `horovodrun` is in `launch`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ringar.horovod import absent
from ringar.launchers.function import run as launcher
from ringar.launchers.plan.job_plan import PREFIX_VARIABLE

Result = TypeVar("Result")

__all__ = ["run"]

__getattr__ = absent.getter(__name__)

PREFIX = "HOROVOD_"
"""The prefix of the variables by which Horovod's launcher tells a process its place."""


def run(
    func: Callable[..., Result],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Result]:
    """Call a function on several ranks, and return all results in the order of the ranks.

    In an elastic job, ranks that have come to the end have results.

    Args:
        func: the function; cloudpickle carries it to the ranks.
        args: its positional arguments.
        kwargs: its keyword arguments.
        num_proc: the number of ranks.
        min_num_proc: makes the job elastic: the least number of ranks that go on. Default, if
            another argument makes the job elastic: `num_proc`.
        max_num_proc: the most ranks of an elastic job; default: `num_proc`.
        slots: must be None: `hosts` or `hostfile` tell the slots of a host.
        reset_limit: how often the ranks of an elastic job may change.
        cooldown_range: no effect: a slot whose processes fail is left alone for longer and longer.
        hosts: hosts and their slots, "h1:2,h2:4".
        hostfile: a file with hosts and slots, `h1 slots=2` in a line.
        start_timeout: seconds that a rank waits in `init` for the others.
        ssh_port: the port of ssh.
        ssh_identity_file: the private key for ssh.
        disable_cache: no effect: nothing is cached.
        output_filename: a folder for the output of each rank.
        verbose: say what is started.
        use_gloo: reach other hosts by TCP, without MPI.
        use_mpi: start the ranks by mpirun.
        mpi_args: more arguments for mpirun.
        network_interface: the interfaces between hosts, separated by commas.
        executable: None, or this Python.
        np: deprecated; `num_proc` takes its place.
        min_np: deprecated, as is `max_np`.
        max_np: deprecated.

    Raises:
        ValueError: arguments contradict each other.
        Exception: the error of the rank that failed first.
    """
    if np is not None:
        warnings.warn("`np` is deprecated: pass `num_proc`", DeprecationWarning, stacklevel=2)
        num_proc = np if num_proc == 1 else num_proc
    for name, old in (("min", min_np), ("max", max_np)):
        if old is not None:
            text = f"`{name}_np` is deprecated: pass `{name}_num_proc`"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
    least = min_np if min_num_proc is None else min_num_proc
    most = max_np if max_num_proc is None else max_num_proc
    if least is None and not (most is None and reset_limit is None):
        least = num_proc
    if slots is not None:
        raise ValueError(
            f"run expected the slots in `hosts` or `hostfile`, received slots={slots}; write "
            'hosts="h1:2,h2:4"'
        )
    if hosts is not None and hostfile is not None:
        raise ValueError("run expected `hosts` or `hostfile`, received both")
    if use_gloo and use_mpi:
        raise ValueError("run expected `use_gloo` or `use_mpi`, received both")
    if executable not in (None, sys.executable):
        raise ValueError(f"run expected this Python, {sys.executable}; received {executable}")
    values = {
        "--hostfile": hostfile,
        "--start-timeout": start_timeout,
        "--ssh-port": ssh_port,
        "--ssh-identity-file": ssh_identity_file,
        "--output-filename": output_filename,
        "--launcher": "mpirun" if use_mpi else None,
        "--mpi-args": mpi_args,
        "--network-interface": network_interface,
        "--min-np": least,
        "--max-np": most,
        "--reset-limit": reset_limit,
    }
    options = [f"{name}={value}" for name, value in values.items() if value is not None]
    options += ["--verbose"] if verbose else []
    # Scripts choose their GPU by local_rank().
    options = ["--gpus=all", *options]
    variables = {PREFIX_VARIABLE: PREFIX}
    return launcher.run(func, args, kwargs, num_proc, hosts=hosts, env=variables, options=options)
