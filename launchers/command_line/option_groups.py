"""The options of `ringarrun`, group by group."""

from __future__ import annotations

import argparse
from pathlib import Path

from ringar.job import gpus
from ringar.launchers.command_line import option_types as types
from ringar.launchers.plan import hosts
from ringar.launchers.start.choose import LAUNCHERS, LINKS


def add_rank_options(parser: argparse.ArgumentParser) -> None:
    """Add the number of ranks, and the resources of each."""
    group = parser.add_argument_group("ranks")
    group.add_argument(
        "-np",
        "-n",
        "--num-proc",
        metavar="N",
        type=types.num_proc,
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
        "--no-environment",
        dest="environment",
        action="store_false",
        help="give ranks on other hosts the variables of Python, TensorFlow, CUDA, MPI and ringar, "
        "and those of -x, only (default: all but those of this host, login and terminal)",
    )
    group.add_argument(
        "--bind-to",
        metavar="{core,numa,none}",
        type=types.one_of("core", "numa", "none"),
        help="core: each rank gets its own CPUs, as many as there are for each; numa: all CPUs of "
        "one NUMA node, which ranks may share; none: the system decides (default: core; with more "
        "ranks than CPUs, a CPU for each where all CPUs then have as many ranks, else none)",
    )
    group.add_argument(
        "--gpus",
        metavar="{each,all}",
        type=types.one_of(*gpus.MODES),
        help="each: each rank sees one GPU of its host, in turn; all: it sees all of them, as "
        "CUDA_VISIBLE_DEVICES has it (default: RINGAR_GPUS, else each)",
    )


def add_host_options(parser: argparse.ArgumentParser) -> None:
    """Add where ranks run, and how they reach each other."""
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
        type=types.one_of(*LAUNCHERS),
        default="auto",
        help="the program that starts the ranks (default: auto: ringarrun itself on this host "
        "alone; srun in an allocation of SLURM; else ringarrun itself by ssh, or mpirun with "
        "--link mpi)",
    )
    group.add_argument(
        "--link",
        metavar="{auto,tcp,mpi}",
        type=types.one_of(*LINKS),
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
    group.add_argument("-p", "--ssh-port", metavar="PORT", type=types.port, help="the port of ssh")
    group.add_argument(
        "-i", "--ssh-identity-file", metavar="FILE", type=Path, help="the private key for ssh"
    )
    group.add_argument(
        "--ssh-command",
        metavar="PROGRAM",
        default="",
        help="the program in place of ssh, called as PROGRAM [-p PORT] [-i FILE] HOST COMMAND "
        "(default: RINGAR_SSH; else blaunch for LSF, pbs_tmrsh for PBS, if there; else ssh)",
    )
    group.add_argument(
        "--mpi-args",
        metavar="'ARG …'",
        type=types.words,
        default=(),
        help="more arguments for mpirun or srun: --mpi-args='--report-bindings'",
    )


def add_elastic_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of jobs whose ranks may change."""
    group = parser.add_argument_group("jobs whose ranks may change; see docs/elastic.md")
    group.add_argument(
        "--min-np",
        metavar="N",
        type=types.count,
        help="go on after the loss of ranks while so many are left, and start others instead",
    )
    group.add_argument(
        "--max-np",
        metavar="N",
        type=types.count,
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
        type=types.whole_number,
        help="end the job after so many changes of its ranks (default: none)",
    )
    group.add_argument(
        "--elastic-timeout",
        metavar="S",
        type=types.seconds,
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


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for messages and files."""
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


def add_autotune_options(parser: argparse.ArgumentParser) -> None:
    """Add the search for the settings of training steps."""
    group = parser.add_argument_group("settings that `fit` finds by itself; see docs/autotune.md")
    group.add_argument(
        "--autotune",
        action="store_true",
        help="try sizes of gradients' buckets, and algorithms between hosts, during the first "
        "steps of `fit`, and keep the fastest; needs pip install optuna",
    )
    group.add_argument(
        "--autotune-log-file",
        metavar="FILE",
        type=Path,
        help="the trials as CSV, a row per sample, which rank 0 writes",
    )
    group.add_argument(
        "--autotune-settings-file",
        metavar="FILE",
        type=Path,
        help="keep the fastest settings in FILE; a job of the same kind begins with them, and "
        "tries no others",
    )


def add_timeouts(parser: argparse.ArgumentParser) -> None:
    """Add how long ranks wait."""
    group = parser.add_argument_group(
        "timeouts, in seconds; the defaults are those of ringar.init()"
    )
    group.add_argument(
        "--start-timeout",
        metavar="S",
        type=types.seconds,
        help="how long a rank waits in init() for the others",
    )
    group.add_argument(
        "--deadline",
        "--stall-check-shutdown-time-seconds",
        metavar="S",
        type=types.seconds,
        help="how long a collective waits for a rank that does not join before it fails",
    )
    group.add_argument(
        "--stall-warning",
        "--stall-check-warning-time-seconds",
        metavar="S",
        type=types.seconds,
        help="how long ranks wait for another one before they name it",
    )
    group.add_argument(
        "--failure-grace",
        metavar="S",
        type=types.seconds,
        default=3.0,
        help="with mpirun and srun: how long after the failure of a rank the others may go on, so "
        "that they say what they lost (default: 3)",
    )
    group.add_argument(
        "--kill-grace",
        metavar="S",
        type=types.seconds,
        help="how long the ranks may go on after ringarrun has got SIGTERM, SIGINT or SIGHUP and "
        "passed it on as SIGTERM, so that they save what they have (default: 3); see "
        "ringar.callbacks.SaveOnSignal",
    )
    group.add_argument(
        "--max-failures",
        metavar="N",
        type=types.count,
        default=0,
        help="how many ranks may fail while the others go on (default: 0), for training that does "
        "without them, as with ringar.Downpour; on one host, or on several with --launcher ssh",
    )
