"""The input and the output of the builders of commands for mpirun and srun, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ringar.launchers.plan.hosts import Host
from ringar.launchers.start.mpi import Mpi
from ringar.launchers.start.ssh import Agent


@dataclass(frozen=True)
class Start:
    """The job for which a command is built.

    Attributes:
        program: the words that every rank runs: the guard, and behind it the user's program.
        num_proc: the number of ranks.
        hosts: how many ranks each host gets; empty where the scheduler decides.
        exported: the names of variables that ranks on other hosts get.
        mpi: the MPI that the ranks will load.
        mpirun: the mpirun to use; None for srun.
        agent: how other hosts are reached; None where the scheduler does it.
        interfaces: network interfaces (or subnets, for Open MPI) to use; empty for all.
        arguments: more arguments for mpirun or srun, as the user gave them.
        environ: the environment that the command will run in.
    """

    program: tuple[str, ...]
    num_proc: int
    hosts: tuple[Host, ...]
    exported: tuple[str, ...]
    mpi: Mpi
    mpirun: Mpi | None = None
    agent: Agent | None = None
    interfaces: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Command:
    """A command line, and the variables that are set for it in addition to the environment."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
