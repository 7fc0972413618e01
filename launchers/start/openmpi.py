"""Build the command line of Open MPI's mpirun, of versions 5 (PRRTE) and 4 (ORTE).

- The values of variables stay in mpirun's environment, and `-x` names them: blanks, commas and
  newlines then need no quoting.
- Guards bind the ranks to CPUs, as in a local job, so mpirun must not.
- All daemons are started from this host (no tree): the check before the start has tried these
  connections and no others.
- mpirun gives a silent host up after about 25 seconds; by default it would take minutes.
- mpirun ends the job when a rank has ended with an error; its guard delays that (see `guard.py`).
- Without fault tolerance Open MPI itself aborts a rank whose peer on another host has gone ("Socket
  closed"), before ringar can name the lost rank. `--with-ft ulfm` makes it an error that ringar
  passes on, but needs `pml ob1`, which knows TCP and shared memory only. So it is used on hosts
  without an RDMA network, which have nothing else.
"""

from __future__ import annotations

import os

from ringar.launchers.start import mpi
from ringar.launchers.start.command import Command, Start

#: Seconds that mpirun leaves the guards between SIGTERM and SIGKILL: they leave the ranks 3.
_SIGKILL_TIMEOUT = 6
#: Seconds of silence before a host is probed, seconds between probes, and their number.
_KEEPALIVE = {"time": 10, "intvl": 5, "probes": 3}


def command(start: Start) -> Command:
    """Return the command that starts the ranks."""
    assert start.mpirun is not None
    words = [start.mpirun.place]
    if os.geteuid() == 0:
        words.append("--allow-run-as-root")
    # Attached daemons show their own errors, and end with their ssh.
    words += ["--leave-session-attached", "-np", str(start.num_proc)]
    if _has_prrte(start) and "--with-ft" not in start.arguments and not mpi.has_fast_network():
        words += ["--with-ft", "ulfm"]
    words += ["--host", ",".join(map(str, start.hosts))]
    words += ["--map-by", "slot", "--bind-to", "none"]
    for name, value in _runtime(start).items():
        words += [_runtime_option(start), name, value]
    if start.interfaces:
        words += ["--mca", "btl_tcp_if_include", ",".join(start.interfaces)]
    for name in start.exported:
        # OMPI_MCA_… goes to all hosts by itself.
        if not name.startswith("OMPI_MCA_"):
            words += ["-x", name]
    return Command((*words, *start.arguments, *start.program))


def _runtime_option(start: Start) -> str:
    return "--prtemca" if _has_prrte(start) else "--mca"


def _has_prrte(start: Start) -> bool:
    return start.mpirun is not None and start.mpirun.major >= 5


def _runtime(start: Start) -> dict[str, str]:
    """Return the parameters of Open MPI's runtime, which starts daemons on the hosts."""
    parameters: dict[str, str] = {}
    if start.agent is not None:
        ssh = "plm_ssh" if _has_prrte(start) else "plm_rsh"
        parameters[f"{ssh}_agent"] = " ".join(start.agent.program)
        if start.agent.options:
            parameters[f"{ssh}_args"] = " ".join(start.agent.options)
        parameters[f"{ssh}_no_tree_spawn"] = "1"
        # In an allocation, too, the hosts are those that were checked, through the same agent.
        parameters["plm"] = "ssh" if _has_prrte(start) else "rsh"
        if "SLURM_JOB_ID" in start.environ:
            parameters["ras"] = "^slurm"  # which refuses hosts that are not of the allocation
    if start.interfaces:
        parameters["oob_tcp_if_include"] = ",".join(start.interfaces)
    for name, value in _KEEPALIVE.items():
        parameters[f"oob_tcp_keepalive_{name}"] = str(value)
    parameters["odls_base_sigkill_timeout"] = str(_SIGKILL_TIMEOUT)
    return parameters
