"""The options of `ringarrun`: what may be asked for, how it is read, and what `--help` says."""

from __future__ import annotations

import argparse
import math
import shlex
from pathlib import Path

from ringar.job import gpus
from ringar.launchers import hosts
from ringar.launchers.choose import LAUNCHERS
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


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 65536):
        raise argparse.ArgumentTypeError(f"expected a port, from 1 to 65535, received {text!r}")
    return int(text)


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"expected arguments as in a shell, received {text!r}: {error}"
        ) from None


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(2, f"ringarrun: error: {message}; see ringarrun --help\n")

    def parse_args(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        try:
            return super().parse_args(*args, **kwargs)
        except UsageError as error:
            self.exit(error.code, f"ringarrun: error: {error}\n")


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = _Parser(
        prog="ringarrun",
        usage="ringarrun -np N [options] [--] program [arguments …]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-np",
        "-n",
        "--num-proc",
        metavar="N",
        type=_num_proc,
        help="how many ranks to start (default: the slots of all hosts, if hosts are given)",
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
    parser.add_argument(
        "--gpus",
        choices=gpus.MODES,
        help="each: each rank sees one GPU of its host, in turn; all: it sees all of them, as "
        "CUDA_VISIBLE_DEVICES has it (default: RINGAR_GPUS, else each)",
    )
    _add_host_options(parser)
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


def _add_host_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("hosts; see docs/running.md")
    group.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:N,…",
        type=hosts.parse,
        default=(),
        help="the hosts to use, and how many ranks each takes: h1:4,h2:4",
    )
    group.add_argument(
        "--hostfile",
        "-hostfile",
        metavar="FILE",
        type=Path,
        help="the same from a file, a host per line: h1 slots=4, or h1:4",
    )
    group.add_argument(
        "--launcher",
        choices=LAUNCHERS,
        default="auto",
        help="who starts the ranks (default: auto: srun in an allocation of SLURM; mpirun if other "
        "hosts are named or given by PBS or LSF; ringarrun itself on this host alone)",
    )
    group.add_argument(
        "--network-interface",
        "--network-interfaces",
        dest="interfaces",
        metavar="NAME,…",
        action="append",
        default=[],
        help="the network interfaces between hosts; with Open MPI also subnets, 10.0.0.0/24",
    )
    group.add_argument("-p", "--ssh-port", metavar="PORT", type=_port, help="the port of ssh")
    group.add_argument(
        "-i", "--ssh-identity-file", metavar="FILE", type=Path, help="the private key for ssh"
    )
    group.add_argument(
        "--ssh-command",
        metavar="PROGRAM",
        default="",
        help="what to use in place of ssh, called as PROGRAM [-p PORT] [-i FILE] HOST COMMAND "
        "(default: RINGAR_SSH; else blaunch for LSF, pbs_tmrsh for PBS, if there; else ssh)",
    )
    group.add_argument(
        "--mpi-args",
        metavar="'ARG …'",
        type=_words,
        default=(),
        help="more arguments for mpirun or srun: --mpi-args='--report-bindings'",
    )


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
    group.add_argument(
        "--dry-run", action="store_true", help="print what would be started, and start nothing"
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
    group.add_argument(
        "--failure-grace",
        metavar="S",
        type=_seconds,
        default=3.0,
        help="with mpirun and srun: how long after the failure of a rank the others may go on, so "
        "that they say what they lost (default: 3)",
    )


def request(options: argparse.Namespace) -> Request:
    """What the parsed options ask for.

    Raises:
        UsageError: they contradict each other, or the host file cannot be read.
    """
    command = tuple(options.command)
    if command[:1] == ("--",):
        command = command[1:]
    if options.hosts and options.hostfile:
        raise UsageError("expected -H or --hostfile, received both; name all hosts in one of them")
    named = hosts.read(options.hostfile) if options.hostfile else options.hosts
    return Request(
        num_proc=options.num_proc,
        command=command,
        hosts=named,
        source=str(options.hostfile or "-H"),
        launcher=options.launcher,
        interfaces=tuple(name for text in options.interfaces for name in text.split(",") if name),
        ssh_command=options.ssh_command,
        ssh_port=options.ssh_port,
        ssh_identity=options.ssh_identity_file,
        mpi_args=options.mpi_args,
        exports=tuple(options.exports),
        bind_to=options.bind_to,
        gpus=options.gpus,
        prefix=options.prefix,
        output_folder=options.output_filename,
        start_timeout=options.start_timeout,
        deadline=options.deadline,
        stall_warning=options.stall_warning,
        failure_grace=options.failure_grace,
        verbose=options.verbose,
        dry_run=options.dry_run,
        timeline=options.timeline_filename.resolve() if options.timeline_filename else None,
    )
