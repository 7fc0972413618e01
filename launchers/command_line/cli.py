"""The command line of `ringarrun`: read it, plan the job, run it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ringar.job import other_launchers
from ringar.job.one_rank.absence import is_linux
from ringar.launchers.command_line import completion, config_file, first_process
from ringar.launchers.command_line import options as options_module
from ringar.launchers.elastic import first_plan
from ringar.launchers.elastic.discovery import Discovery
from ringar.launchers.elastic.next_world import Limits
from ringar.launchers.errors import UsageError
from ringar.launchers.plan.request import Request
from ringar.launchers.start.choose import Choice, choose


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `ringarrun` with `arguments` (default: sys.argv) and return its exit code."""
    _fill_standard_streams()
    if os.getpid() == 1 and (code := first_process.reap()) is not None:
        return code
    try:
        options = config_file.parse(arguments)
        if options.print_completion:
            parser = options_module.parser()
            print(completion.script(parser, options.print_completion))
            return 0
    except UsageError as error:
        return _failed(error)
    if options.version:
        from ringar.launchers.installation import ringar_version

        print(f"ringarrun {ringar_version()}")
        return 0
    if options.check_build:
        from ringar.launchers.command_line import check_build

        return check_build.main()
    try:
        request = options_module.request(options)
        if request.dry_run:
            print("".join(f"{line}\n" for line in config_file.explain(options)), end="")
        _warn_of_others(sys.argv[1:] if arguments is None else arguments)
        return _run(_calibration(request) if options.calibrate else request)
    except UsageError as error:
        return _failed(error)


def _failed(error: UsageError) -> int:
    print(f"ringarrun: error: {error}", file=sys.stderr)
    return error.code


def _warn_of_others(arguments: Sequence[str]) -> None:
    """Warn if another launcher has started this one several times."""
    start = other_launchers.of_launcher(os.environ)
    if start is not None and "RINGAR_RANK" not in os.environ:
        text = other_launchers.warning_of_launcher(start, arguments)
        print(f"ringarrun: warning: {text}", file=sys.stderr)


def _calibration(request: Request) -> Request:
    """Return the request for a job that calibrates this machine."""
    if request.command:
        raise UsageError(
            f"--calibrate: expected no program to run, received {request.command[0]!r}; start it "
            "in the next job, which uses the result"
        )
    return replace(
        request,
        command=("ringar.launchers.command_line.calibrate",),
        module=True,
        num_proc=request.num_proc or 2,
        exports=(*request.exports, "RINGAR_CALIBRATION=again", "TF_CPP_MIN_LOG_LEVEL=2"),
        prefix=bool(request.prefix),
    )


def _run(request: Request) -> int:
    if not is_linux():
        from ringar.launchers.start import one_rank

        code = one_rank.run(request, os.environ)
        if request.timeline and not request.dry_run:
            _merge_timeline(request.timeline, 1)
        return code
    if first_plan.is_wanted(request):
        if request.max_failures:
            raise UsageError(
                "--max-failures: expected a job that is not elastic; --min-np says how few ranks "
                "an elastic job goes on with"
            )
        return _run_elastic(request)
    choice = choose(request, os.environ)
    if request.max_failures and choice.launcher not in ("local", "ssh"):
        raise UsageError(
            "--max-failures: expected a job on this host or one of --launcher ssh, received one "
            f"of {choice.launcher}, which ends with its first rank that fails"
        )
    code = (_run_local if choice.launcher == "local" else _run_mpi)(request, choice)
    if request.timeline and not request.dry_run:
        # Also after a failure, when the last steps of the ranks matter most.
        _merge_timeline(request.timeline, choice.num_proc)
    return code


def _run_local(request: Request, choice: Choice) -> int:
    # Imported late so that --help and errors come at once.
    from ringar.launchers.plan import cpus, job_plan
    from ringar.launchers.start import fork

    job = job_plan.make(request, choice.num_proc, os.environ, cpus.available())
    if request.dry_run:
        print(job.shell())
        return 0
    return fork.run(job)


def _run_elastic(request: Request) -> int:
    request, limits, discovery = first_plan.complete(request, os.environ)
    try:
        if first_plan.is_on_this_host(request, discovery, os.environ):
            code = _run_elastic_here(request, limits, discovery)
        else:
            code = _run_elastic_spread(request, limits, discovery)
    finally:
        if discovery is not None:
            discovery.close()
    if request.timeline:
        _merge_timeline(request.timeline, limits.min_np)
    return code


def _run_elastic_here(request: Request, limits: Limits, discovery: Discovery | None) -> int:
    from ringar.launchers.elastic import members
    from ringar.launchers.plan import cpus

    usable = cpus.available()
    job = first_plan.on_this_host(request, limits, discovery, os.environ, usable)
    if request.dry_run:
        print(job.shell())
        return 0
    return members.run(job, limits, discovery)


def _run_elastic_spread(request: Request, limits: Limits, discovery: Discovery | None) -> int:
    from ringar.launchers.elastic import spread_members

    if request.dry_run:
        print(first_plan.on_hosts(request, limits, discovery, os.environ).shell())
        return 0
    try:
        job, absentees = first_plan.on_hosts_that_answer(request, limits, discovery, os.environ)
    except KeyboardInterrupt:
        return _interrupted()
    return spread_members.run(job, limits, discovery, absentees)


def _run_mpi(request: Request, choice: Choice) -> int:
    from ringar.launchers.start import hosts_plan, preflight, supervisor

    try:
        job = hosts_plan.make(request, choice, os.environ)
        if request.dry_run:
            print(job.shell())
            return 0
        job = preflight.check(job)
    except KeyboardInterrupt:
        return _interrupted()
    return supervisor.run(job)


def _interrupted() -> int:
    print("ringarrun: interrupted; nothing was started", file=sys.stderr)
    return 128 + signal.SIGINT


def _merge_timeline(path: Path, num_proc: int) -> None:
    from ringar.job import timeline

    count = timeline.merge(path)
    if not count:
        print(
            f"ringarrun: no rank called ringar.init(), so there is no timeline {path}",
            file=sys.stderr,
        )
    elif count < num_proc:
        print(
            f"ringarrun: the timeline {path} holds {count} of {num_proc} ranks; "
            "with several hosts, its folder must be one that all of them share",
            file=sys.stderr,
        )


def _fill_standard_streams() -> None:
    """Open /dev/null in place of a standard stream that the caller has closed.

    Otherwise the next file opened here, such as a pipe, would become "standard output".
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
