"""The options of `ringarrun`: their names, their types, and the text of `--help`."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ringar.job import gpus
from ringar.launchers import hosts
from ringar.launchers.choose import LAUNCHERS, LINKS
from ringar.launchers.errors import UsageError
from ringar.launchers.plan import MAX_LOCAL_RANKS, check_num_proc
from ringar.launchers.request import Request
from ringar.launchers.suggest import close_to, did_you_mean

#: What `--help` prints: one screen of 24 lines with 80 columns. `--help-all` has the details.
_SUMMARY = """\
usage: ringarrun -np N [options] [--] train.py | program [argument ...]
       ringarrun -np N [options] -m package.module [argument ...]

Start a script, a module or a program on N ranks, and end them together.

  ringarrun -np 4 train.py --epochs 3           4 ranks on this machine
  ringarrun -H h1:4,h2:4 -m package.train       8 ranks on two hosts

ranks    -np N                   number of ranks (default: slots of all hosts)
         -x NAME[=VALUE]         set a variable, or pass on the one set here
         --bind-to core|numa|none, --gpus each|all, --max-failures N
elastic  --min-np N, --max-np N, --host-discovery-script PROGRAM,
         --reset-limit N, --elastic-timeout S, --elastic-dir DIR
hosts    -H HOST:N,...           hosts, and how many ranks each takes
         --hostfile FILE         the same, a host per line
         --launcher auto|local|ssh|mpirun|srun, --link auto|tcp|mpi,
         --network-interface NAME, --ssh-port N, --ssh-identity-file FILE,
         --ssh-command PROGRAM, --mpi-args 'ARG ...'
output   --[no-]prefix, --output-filename DIR, --timeline-filename FILE,
         --verbose, --dry-run
seconds  --start-timeout, --deadline, --stall-warning, --failure-grace,
         --kill-grace
about    --help, --help-all: in detail, --check-build, --calibrate, --version
"""

_DESCRIPTION = """\
Start a Python script, a Python module or a program on N ranks, show their output, and end them
together.
"""

_EPILOG = """\
examples:
  ringarrun -np 4 train.py --epochs 3
  ringarrun -np 2 -m package.train --epochs 3
  ringarrun -np 2 -x TF_CPP_MIN_LOG_LEVEL=2 --output-filename logs -- train.sh
  ringarrun --check-build

what the ranks run:
  A file that ends in .py, and a module after -m, run with the Python of ringarrun. Any other word
  is a program: ringarrun -np 2 python train.py runs the first python in PATH.

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
  N if signal N killed it. Ctrl-C and SIGTERM stop all ranks (exit code 130 and 143), which have
  --kill-grace seconds to save what they have; a second Ctrl-C kills them at once. Whatever the
  ranks started in the background ends with the job. 2 is a wrong command line, 126 a program that
  cannot be executed, 127 a program that is not found.
"""


#: The counterparts of torchrun's options that are spelled differently.
_OF_TORCHRUN = {"--nproc-per-node": ["-np"], "--nnodes": ["--hosts"]}


def _num_proc(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise UsageError(
            f"-np: expected the number of ranks to start, from 1 to {MAX_LOCAL_RANKS}, "
            f"received {text!r}; "
            "for example: ringarrun -np 2 train.py"
        ) from None
    # The upper limit depends on the machine and is checked with the plan.
    check_num_proc(min(number, 1))
    return number


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected a whole number, 0 or more, received {text!r}")
    return int(text)


def _count(text: str) -> int:
    number = _whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, received {text!r}")
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


def _one_of(*names: str) -> Callable[[str], str]:
    """Return the type of an option that takes one of `names`."""

    def convert(text: str) -> str:
        if text in names:
            return text
        raise argparse.ArgumentTypeError(
            f"expected {', '.join(names[:-1])} or {names[-1]}, received {text!r}"
            + did_you_mean(close_to(text, names))
        )

    return convert


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, with a suggestion for an unknown option."""

    def error(self, message: str) -> NoReturn:
        end = " See" if message.endswith("?") else "; see"
        self.exit(2, f"ringarrun: error: {message}{end} ringarrun --help\n")

    def parse_args(self, *args: Any, **kwargs: Any) -> argparse.Namespace:  # type: ignore[override]
        try:
            options, unknown = self.parse_known_args(*args, **kwargs)
        except UsageError as error:
            self.exit(error.code, f"ringarrun: error: {error}\n")
        if unknown:
            name = unknown[0].partition("=")[0]
            known = [option for action in self._actions for option in action.option_strings]
            close = _OF_TORCHRUN.get(name.replace("_", "-")) or close_to(name, known)
            self.error(f"unknown option {name}{did_you_mean(close)}")
        return options

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Drop abbreviations of options with one dash, which `allow_abbrev` does not turn off."""
        found = super()._get_option_tuples(option_string)
        return [
            match for match in found if option_string.startswith(match[1]) and match[0].nargs != 0
        ]


class _Summary(argparse.Action):
    """Print `--help`, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(_SUMMARY, end="")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = _Parser(
        prog="ringarrun",
        usage="ringarrun -np N [options] [--] train.py | program [argument ...]\n"
        "       ringarrun -np N [options] -m package.module [argument ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    _add_rank_options(parser)
    _add_host_options(parser)
    _add_elastic_options(parser)
    _add_output_options(parser)
    _add_timeouts(parser)
    group = parser.add_argument_group("about")
    group.add_argument("-h", "--help", action=_Summary, nargs=0, help="the most used, on a screen")
    group.add_argument("--help-all", action="help", help="show this, and exit")
    group.add_argument(
        "-cb",
        "--check-build",
        action="store_true",
        help="report what ringar finds on this machine, and exit",
    )
    group.add_argument(
        "--calibrate",
        action="store_true",
        help="measure what is best on this machine for -np ranks (default: 2), keep it for the "
        "jobs to come, and exit; the first job with so many ranks does the same by itself",
    )
    group.add_argument("-v", "--version", action="store_true", help="print the version, and exit")
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        help="the script, module or program that every rank runs, and its arguments",
    )
    return parser


def _add_rank_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("ranks")
    group.add_argument(
        "-np",
        "-n",
        "--num-proc",
        metavar="N",
        type=_num_proc,
        help="how many ranks to start (default: the slots of all hosts, if hosts are given)",
    )
    group.add_argument(
        "-m",
        "--module",
        action="store_true",
        help="run a Python module, as python -m does; its name and its arguments come last",
    )
    group.add_argument(
        "-x",
        dest="exports",
        metavar="NAME[=VALUE]",
        action="append",
        default=[],
        help="set a variable for the ranks, or pass on the one that is set here; may be repeated",
    )
    group.add_argument(
        "--bind-to",
        metavar="{core,numa,none}",
        type=_one_of("core", "numa", "none"),
        help="core: each rank gets its own CPUs, as many as there are for each; numa: all CPUs of "
        "one NUMA node, which ranks may share; none: the system decides (default: core, unless "
        "there are more ranks than CPUs)",
    )
    group.add_argument(
        "--gpus",
        metavar="{each,all}",
        type=_one_of(*gpus.MODES),
        help="each: each rank sees one GPU of its host, in turn; all: it sees all of them, as "
        "CUDA_VISIBLE_DEVICES has it (default: RINGAR_GPUS, else each)",
    )


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
        metavar="{auto,local,ssh,mpirun,srun}",
        type=_one_of(*LAUNCHERS),
        default="auto",
        help="who starts the ranks (default: auto: ringarrun itself on this host alone; srun in an "
        "allocation of SLURM; else ringarrun itself by ssh, or mpirun with --link mpi)",
    )
    group.add_argument(
        "--link",
        metavar="{auto,tcp,mpi}",
        type=_one_of(*LINKS),
        default="auto",
        help="how ranks of several hosts reach each other: tcp, which needs nothing, or mpi, which "
        "needs mpi4py and an MPI (default: auto: mpi where mpirun or srun starts the ranks or this "
        "host has InfiniBand, else tcp)",
    )
    group.add_argument(
        "--network-interface",
        "--network-interfaces",
        dest="interfaces",
        metavar="NAME,…",
        action="append",
        default=[],
        help="the network interfaces between hosts; with TCP and Open MPI also subnets, "
        "10.0.0.0/24",
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


def _add_elastic_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("jobs whose ranks may change; see docs/elastic.md")
    group.add_argument(
        "--min-np",
        metavar="N",
        type=_count,
        help="go on after the loss of ranks while so many are left, and start others instead",
    )
    group.add_argument(
        "--max-np",
        metavar="N",
        type=_count,
        help="at most so many ranks, where the number of slots changes (default: -np)",
    )
    group.add_argument(
        "--host-discovery-script",
        metavar="PROGRAM",
        help="prints the hosts that may be used now, host:slots per line; asked every second. With "
        "--min-np, a --hostfile is read again as it changes",
    )
    group.add_argument(
        "--reset-limit",
        metavar="N",
        type=_whole,
        help="end the job after so many changes of its ranks (default: none)",
    )
    group.add_argument(
        "--elastic-timeout",
        metavar="S",
        type=_seconds,
        default=600.0,
        help="how long to wait for --min-np ranks, and for a rank that does not come to the next "
        "meeting (default: 600)",
    )
    group.add_argument(
        "--elastic-dir",
        metavar="DIR",
        type=Path,
        help="also keep the last commit in DIR, from which the job goes on if it is started again",
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
    group = parser.add_argument_group(
        "timeouts, in seconds; the defaults are those of ringar.init()"
    )
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
    group.add_argument(
        "--kill-grace",
        metavar="S",
        type=_seconds,
        help="how long the ranks may go on after ringarrun has got SIGTERM, SIGINT or SIGHUP and "
        "passed it on as SIGTERM, so that they save what they have (default: 3); see "
        "ringar.callbacks.SaveOnSignal",
    )
    group.add_argument(
        "--max-failures",
        metavar="N",
        type=_count,
        default=0,
        help="how many ranks may fail while the others go on (default: 0), for training that does "
        "without them, as with ringar.Downpour; on one host, or on several with --launcher ssh",
    )


def request(options: argparse.Namespace) -> Request:
    """Turn the parsed options into a request.

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
        module=options.module,
        hosts=named,
        source=str(options.hostfile or "-H"),
        launcher=options.launcher,
        link=options.link,
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
        kill_grace=options.kill_grace,
        max_failures=options.max_failures,
        verbose=options.verbose,
        dry_run=options.dry_run,
        timeline=options.timeline_filename.resolve() if options.timeline_filename else None,
        min_np=options.min_np,
        max_np=options.max_np,
        discovery_script=options.host_discovery_script,
        reset_limit=options.reset_limit,
        elastic_timeout=options.elastic_timeout,
        elastic_dir=options.elastic_dir.resolve() if options.elastic_dir else None,
    )
