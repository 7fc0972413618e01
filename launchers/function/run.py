"""Run a function on ranks, from a script or a notebook: `ringar.run`.

The launcher runs as a process of its own (`process.py`). The function and its results go through
`rendezvous.py`.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ringar.errors import DeadlineError, UnsupportedError
from ringar.job import nvidia
from ringar.job.one_rank.absence import absence_of_system, is_linux
from ringar.launchers.command_line import config_file
from ringar.launchers.command_line import options as options_module
from ringar.launchers.elastic import first_plan
from ringar.launchers.errors import UsageError
from ringar.launchers.function import outcomes
from ringar.launchers.function.process import Launcher
from ringar.launchers.function.rendezvous import VARIABLE, Server
from ringar.launchers.plan import hosts as hosts_module
from ringar.launchers.plan import scheduler_hosts
from ringar.launchers.plan.request import Request
from ringar.launchers.start.choose import Choice, choose

Result = TypeVar("Result")


def run(
    function: Callable[..., Result],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    np: int | None = None,
    *,
    hosts: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    options: Sequence[str] = (),
) -> list[Result]:
    """Call a function on several ranks, from a script or a notebook, and return all results.

    Each rank is a new process, as `ringarrun` starts it. The function is what the script of such a
    job would be: it calls `ringar.init`, and imports what it needs or uses the caller's imports. It
    may be a lambda, a closure, or defined in a notebook; `cloudpickle` carries it to the ranks,
    with the variables that it uses. Lines that ranks print appear at once, after their rank.

    An interrupt (Ctrl-C, or "interrupt the kernel") ends all ranks, and so does the end of this
    process.

    Args:
        function: the function that every rank calls.
        args: its positional arguments, the same on each rank.
        kwargs: its keyword arguments.
        np: the number of ranks; by default the slots of the hosts that are named, or of the
            scheduler's allocation, else the number of GPUs, and 2 without GPUs; in an elastic job
            no fewer than `min_np`, and no more than `max_np`.
        hosts: the hosts and their slots, as in `ringarrun -H`: "h1:4,h2:4". They must be able to
            connect to a port of this host; they need no common disk.
        env: variables to set for the ranks.
        timeout: seconds after which the ranks are ended.
        min_np: makes the job elastic: it goes on while so many ranks are left. The function trains
            by `ringar.elastic.run` or `ringar.callbacks.Elastic`, and is called in each process
            that joins.
        max_np: as many ranks as an elastic job may have, where hosts come and go.
        options: further options of `ringarrun`, such as `["--bind-to", "none"]`, or of an elastic
            job `["--host-discovery-script", "./hosts.sh", "--reset-limit", "3"]`.

    Returns:
        The results, in the order of ranks; those of an elastic job are of the ranks that have come
        to the end.

    Raises:
        DeadlineError: the ranks have not ended within `timeout`; the message names them.
        RankError: a rank was killed, its result cannot be pickled, or nothing could be started.
        RuntimeError: this process is a rank itself.
        TypeError: `function` or its arguments cannot be pickled.
        UnsupportedError: this system has one rank only, as macOS and Windows.
        ValueError: an option of the launcher is wrong.
        Exception: the error of the rank that failed first, with its class. Its cause, a
            `RankError`, has the rank and its traceback.
    """
    if not is_linux():
        raise UnsupportedError(
            f"ringar.run: expected a system with ranks: {absence_of_system().text()} Call the "
            "function itself: it is the one rank here."
        )
    _refuse_inside_a_job()
    message = outcomes.message(function, args, kwargs)
    elastic = {"--min-np": min_np, "--max-np": max_np}
    options = [*_option_words(elastic), *options]
    arguments = _arguments(np, hosts, env, options)
    request = _request(arguments)
    if _is_elastic(request):
        return call_elastic(arguments, message, env or {}, timeout)
    choice = _choice(request)
    remote_hosts = [host.name for host in choice.hosts if not hosts_module.is_this_host(host.name)]
    with Server(remote_hosts, local=choice.launcher == "local", last=message) as server:
        launcher = Launcher(arguments, {**os.environ, **(env or {}), VARIABLE: server.variable})
        if not launcher.wait(timeout):
            ranks = sorted(set(range(choice.num_proc)) - server.outcomes.keys())
            raise DeadlineError(
                f"ringar.run: expected the function to end within {timeout:g} s on every rank, "
                f"still waiting for rank {', '.join(map(str, ranks))}"
            )
    return outcomes.results(server.outcomes, choice.num_proc, launcher)


def _refuse_inside_a_job() -> None:
    from ringar.job import mpi  # needs NumPy

    if not {"RINGAR_JOB", "RINGAR_RANK"}.isdisjoint(os.environ) or mpi.started_by_mpi(os.environ):
        raise RuntimeError(
            "ringar.run: expected a process outside of any job, but this one is a rank "
            "(ringarrun, ringar.run, mpirun or srun has started it); call the function itself"
        )


def _arguments(
    np: int | None, hosts: str | None, env: Mapping[str, str] | None, options: Sequence[str]
) -> list[str]:
    """Return the command line of `ringarrun`."""
    words = [] if hosts is None else ["-H", hosts]
    if np is not None:
        words += ["-np", str(np)]
    for name in env or ():
        words += ["-x", name]
    words += [*options, "-m", "ringar.launchers.function.worker"]
    request = _request(words)
    knows_hosts = request.hosts or request.discovery_script or scheduler_hosts.find(os.environ)
    if request.num_proc is None and not knows_hosts:
        number = max(len(nvidia.visible_gpus(os.environ)) or 2, request.min_np or 1)
        words[:0] = ["-np", str(min(number, request.max_np or number))]
    return words


def call_elastic(
    arguments: Sequence[str], message: bytes, env: Mapping[str, str], timeout: float | None
) -> list[Any]:
    """Call a function in an elastic job; return the results of ranks that have come to the end.

    Args:
        arguments: the command line of `ringarrun`.
        message: the function and its arguments, as `outcomes.message` returns them.
        env: variables to set for the ranks.
        timeout: seconds after which the job is ended.

    Raises:
        DeadlineError: it has not ended within `timeout`.
        RankError: it could not go on.
        Exception: an error of the function on all ranks.
    """
    request = _request(arguments)
    names = [host.name for host in request.hosts]
    remote_hosts = [name for name in names if not hosts_module.is_this_host(name)]
    can_spread = remote_hosts or request.discovery_script
    is_local = not can_spread and request.launcher in ("auto", "local")
    with Server(remote_hosts, local=is_local, last=message) as server:
        launcher = Launcher(arguments, {**os.environ, **env, VARIABLE: server.variable})
        if not launcher.wait(timeout):
            raise DeadlineError(
                f"ringar.run: expected the elastic job to end within {timeout:g} s, but ranks "
                "still train; raise `timeout`, or let the function do less"
            )
    return outcomes.of_elastic_job(server.outcomes, launcher)


def _is_elastic(request: Request) -> bool:
    try:
        return first_plan.is_wanted(request)
    except UsageError as error:
        raise ValueError(f"ringar.run: {error}") from None


def _option_words(options: Mapping[str, object]) -> list[str]:
    """Return the words for the options that have a value."""
    return [f"{name}={value}" for name, value in options.items() if value is not None]


def parsed(arguments: Sequence[str]) -> tuple[Request, Choice]:
    """Return the request in the launcher's arguments, and its choice of hosts and ranks.

    Raises:
        ValueError: the launcher would refuse `arguments`.
    """
    request = _request(arguments)
    return request, _choice(request)


def _request(arguments: Sequence[str]) -> Request:
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output):
            return options_module.request(config_file.parse(arguments))
    except UsageError as error:
        raise ValueError(f"ringar.run: {error}") from None
    except SystemExit:
        text = output.getvalue().strip().removeprefix("ringarrun: error: ")
        raise ValueError(f"ringar.run: {text}") from None


def _choice(request: Request) -> Choice:
    try:
        return choose(request, os.environ)
    except UsageError as error:
        raise ValueError(f"ringar.run: {error}") from None
