"""Build the command line of hydra, the mpirun of MPICH and its relatives.

- The values of variables stay in the environment, and `-genvlist` names them.
- hydra has no option for arguments of ssh; it reads them from a variable.
- As soon as one rank has ended with an error, hydra sends SIGKILL to the others; the guards and
  their janitors clean up after that.
- hydra may print a banner about it on standard output, between the lines of the ranks.
"""

from __future__ import annotations

import os

from ringar.launchers.errors import UsageError
from ringar.launchers.start.command import Command, Start


def command(start: Start) -> Command:
    """Return the command that starts the ranks.

    Raises:
        UsageError: several network interfaces, or a subnet, which hydra does not take.
    """
    assert start.mpirun is not None
    words = [start.mpirun.place]
    environment: dict[str, str] = {}
    words += ["-np", str(start.num_proc)]
    words += ["-hosts", ",".join(map(str, start.hosts))]
    words += ["-bind-to", "none"]
    if start.agent is not None:
        if len(start.agent.program) > 1:
            raise UsageError(
                f"--ssh-command: expected a program without arguments for {start.mpi}, "
                f"received {' '.join(start.agent.program)!r}; write a script"
            )
        # hydra calls an agent of kind ssh with -x, which blaunch and scripts do not know.
        kind = "ssh" if os.path.basename(start.agent.program[0]) == "ssh" else "rsh"
        words += ["-launcher", kind, "-launcher-exec", start.agent.program[0]]
        if start.agent.options:
            environment["HYDRA_LAUNCHER_EXTRA_ARGS"] = " ".join(start.agent.options)
    exported = start.exported
    if start.interfaces:
        environment |= network(start)
        words += ["-iface", start.interfaces[0]]
        exported = tuple(sorted({*exported, *network(start)}))
    words += ["-genvlist", ",".join(exported)]
    return Command((*words, *start.arguments, *start.program), environment)


def network(start: Start) -> dict[str, str]:
    """Return the variables that make MPICH use one interface: for UCX, and for libfabric's TCP.

    Raises:
        UsageError: there are several, or a subnet.
    """
    if len(start.interfaces) != 1 or "/" in start.interfaces[0]:
        raise UsageError(
            f"--network-interface: expected one interface by its name for {start.mpi}, "
            f"received {','.join(start.interfaces)!r}"
        )
    name = start.interfaces[0]
    return {"UCX_NET_DEVICES": name, "FI_TCP_IFACE": name, "FI_SOCKETS_IFACE": name}
