"""The command line of `ringarrun`: read it, plan the job, run it."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ringar.launchers.errors import UsageError
from ringar.launchers.plan import MAX_LOCAL_RANKS, check_num_proc
from ringar.launchers.request import Request

_DESCRIPTION = """\
Start a program on several ranks, show their output, and end them together.
"""

_EPILOG = """\
examples:
  ringarrun -np 4 python train.py --epochs 3
  ringarrun -np 2 -x TF_CPP_MIN_LOG_LEVEL=2 --output-filename logs -- python train.py
  ringarrun --check-build

what the ranks get:
  The environment of ringarrun, what -x adds, PYTHONUNBUFFERED=1 unless it is set, and RINGAR_RANK,
  RINGAR_SIZE and so on, which ringar.init() reads. Rank 0 reads the standard input of ringarrun;
  the other ranks read nothing.

output:
  Each line is shown as it was written, on the stream that it was written to, after "[rank] ". The
  progress bar of rank 0 stays alive; of the other ranks' bars only the last state of each line is
  shown.

how a job ends:
  The exit code is 0 if all ranks exit with 0. When a rank fails, the others are stopped (SIGTERM, 3
  seconds later SIGKILL), its error is shown last and its exit code becomes that of ringarrun: 128 +
  N if signal N killed it. Ctrl-C and SIGTERM stop all ranks (exit code 130 and 143); a second
  Ctrl-C kills them at once. Whatever the ranks started in the background ends with the job. 2 is a
  wrong command line, 126 a program that cannot be executed, 127 a program that is not found.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `ringarrun` with `arguments` (default: sys.argv) and return its exit code."""
    _fill_standard_streams()
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.version:
        from ringar.launchers.check_build import ringar_version

        print(f"ringarrun {ringar_version()}")
        return 0
    if options.check_build:
        from ringar.launchers import check_build

        return check_build.main()
    try:
        return _run(_request(options))
    except UsageError as error:
        print(f"ringarrun: error: {error}", file=sys.stderr)
        return error.code


def _run(request: Request) -> int:
    # Imported late so that --help and errors come at once.
    from ringar.launchers import cpus, local, plan

    code = local.run(plan.make(request, request.num_proc or 1, os.environ, cpus.available()))
    if request.timeline:
        # Also after a failure: what the ranks did last is then worth the most.
        _merge_timeline(request.timeline)
    return code


def _merge_timeline(path: Path) -> None:
    from ringar import timeline

    if not timeline.merge(path):
        print(
            f"ringarrun: no rank called ringar.init(), so there is no timeline {path}",
            file=sys.stderr,
        )


def _request(options: argparse.Namespace) -> Request:
    command = tuple(options.command)
    if command[:1] == ("--",):
        command = command[1:]
    if options.num_proc is None:
        raise UsageError(
            "expected -np N, the number of ranks to start, received none; "
            "for example: ringarrun -np 2 python train.py"
        )
    return Request(
        num_proc=options.num_proc,
        command=command,
        exports=tuple(options.exports),
        bind_to=options.bind_to,
        prefix=options.prefix,
        output_folder=options.output_filename,
        start_timeout=options.start_timeout,
        deadline=options.deadline,
        stall_warning=options.stall_warning,
        verbose=options.verbose,
        timeline=options.timeline_filename.resolve() if options.timeline_filename else None,
    )


def _num_proc(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise UsageError(
            f"-np: expected the number of ranks to start, from 1 to {MAX_LOCAL_RANKS}, "
            f"received {text!r}; "
            "for example: ringarrun -np 2 python train.py"
        ) from None
    # The upper limit depends on the machine and is checked with the plan.
    check_num_proc(min(number, 1))
    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (0 < seconds < math.inf):
        raise argparse.ArgumentTypeError(
            f"expected a positive number of seconds, received {text!r}"
        )
    return seconds


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(2, f"ringarrun: error: {message}; see ringarrun --help\n")

    def parse_args(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        try:
            return super().parse_args(*args, **kwargs)
        except UsageError as error:
            self.exit(error.code, f"ringarrun: error: {error}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ringarrun",
        usage="ringarrun -np N [options] [--] program [arguments …]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-np", "-n", "--num-proc", metavar="N", type=_num_proc, help="how many ranks to start"
    )
    parser.add_argument(
        "-x",
        dest="exports",
        metavar="NAME[=VALUE]",
        action="append",
        default=[],
        help="set a variable for the ranks, or pass on the one that is set here; may be repeated",
    )
    parser.add_argument(
        "--bind-to",
        choices=("core", "numa", "none"),
        help="core: each rank gets its own CPUs, as many as there are for each; numa: all CPUs of "
        "one NUMA node, which ranks may share; none: the system decides (default: core, unless "
        "there are more ranks than CPUs)",
    )
    _add_output_options(parser)
    _add_timeouts(parser)
    parser.add_argument(
        "-cb",
        "--check-build",
        action="store_true",
        help="report what ringar finds on this machine, and exit",
    )
    parser.add_argument("-v", "--version", action="store_true", help="print the version, and exit")
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        help="the program that every rank runs, and its arguments",
    )
    return parser


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--prefix",
        action=argparse.BooleanOptionalAction,
        default=None,
        help='begin each line with "[rank] " (default: yes, unless there is only one rank)',
    )
    group.add_argument(
        "--output-filename",
        metavar="DIR",
        type=Path,
        help="also keep the output of each rank in DIR/rank.N/stdout and DIR/rank.N/stderr",
    )
    group.add_argument(
        "--timeline-filename",
        metavar="FILE",
        type=Path,
        help="record what the collectives of all ranks do, as a Chrome trace for Perfetto",
    )
    group.add_argument(
        "--verbose", action="store_true", help="say what is started, where, and how each rank ends"
    )


def _add_timeouts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("times, in seconds; the defaults are those of ringar.init()")
    group.add_argument(
        "--start-timeout",
        metavar="S",
        type=_seconds,
        help="how long a rank waits in init() for the others",
    )
    group.add_argument(
        "--deadline",
        "--stall-check-shutdown-time-seconds",
        metavar="S",
        type=_seconds,
        help="after how long a collective that some rank has not joined fails",
    )
    group.add_argument(
        "--stall-warning",
        "--stall-check-warning-time-seconds",
        metavar="S",
        type=_seconds,
        help="after how long a rank that others wait for is named",
    )


def _fill_standard_streams() -> None:
    """Open /dev/null in place of a standard stream that the caller has closed.

    Otherwise the next file opened here, a pipe or the arena, would become "standard output".
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
