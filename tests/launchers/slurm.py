"""A SLURM of one node for the tests: munged, slurmctld and slurmd in a folder of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo")

_CONFIGURATION = """\
ClusterName=ringar
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def obstacle() -> str:
    """Why there can be no SLURM here; "" if there can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    names = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    if names:
        return f"slurm-wlm is not installed (no {', '.join(names)})"
    return "" if os.geteuid() == 0 else "SLURM's daemons are started as root only"


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Run a cluster and give the environment in which its commands find it.

    Args:
        folder: an empty one, with a short path: sockets lie in it.
    """
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    folder.chmod(0o755)
    text = _CONFIGURATION.format(host=socket.gethostname(), folder=folder, ports=_free_ports())
    (folder / "slurm.conf").write_text(text)
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}
    commands = (
        [
            *("munged", "--foreground", "--force", f"--key-file={key}"),
            *(f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid"),
            *(f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed"),
        ],
        ["slurmctld", "-D", "-c"],
        ["slurmd", "-D", "-c"],
    )
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with open(folder / f"{command[0]}.out", "wb") as out:
                daemons.append(subprocess.Popen(command, env=environ, stdout=out, stderr=out))
        _wait_until_idle(folder, environ)
        yield environ
    finally:
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _free_ports() -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def _wait_until_idle(folder: Path, environ: dict[str, str]) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        answer = subprocess.run(
            ["sinfo", "--noheader", "--format=%T"],
            env=environ,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if answer.stdout.strip() == "idle":
            return
        time.sleep(0.2)
    logs = [path.read_text()[-2000:] for path in folder.glob("*.log")]
    raise AssertionError("SLURM's node did not become idle in 30 s:\n" + "\n".join(logs))
