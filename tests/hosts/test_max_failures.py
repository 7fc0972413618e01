"""`--max-failures` between hosts: ranks and whole hosts may fail while the others go on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.asynchronous.test_server_faults import DIES_IN_MID_PUSH, FIT, program, results
from tests.hosts import SUBNET, Hosts
from tests.plugin import JobResult, fast_if, run_job

pytestmark = [pytest.mark.job, pytest.mark.deadline(120)]

# Ranks that are named fail at once, or end the way to their host; the others sleep.
SLEEPS = """
import os, signal, sys, time
rank, how, named, seconds = os.environ["RINGAR_RANK"], *sys.argv[1:]
if rank in named.split(","):
    if how == "way":
        guard = os.getppid()
        way = int(open(f"/proc/{guard}/stat").read().rsplit(")", 1)[1].split()[1])
        os.kill(way, signal.SIGKILL)
        os.kill(guard, signal.SIGKILL)
    sys.exit(7)
time.sleep(float(seconds))
print("done", rank)
"""


def run(hosts: Hosts, failures: int, slots: str, script: Path, *args: str) -> JobResult:
    """Run a script on the slots of two hosts, where `failures` ranks may fail."""
    names = ",".join(f"{host.name}:{n}" for host, n in zip(hosts, slots.split(","), strict=True))
    command = [sys.executable, "-m", "ringar.launchers", "-H", names, "--no-prefix"]
    command += ["--ssh-command", str(hosts.agent), "--network-interface", SUBNET]
    command += ["--launcher", "ssh", "--max-failures", str(failures)]
    command += [sys.executable, str(script), *args]
    env = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    result = run_job(None, hosts[0].command(*command), deadline=80, env=env)
    assert not result.leftovers, result
    assert not hosts.processes(), result
    return result


@pytest.fixture
def sleeps(tmp_path: Path) -> Path:
    """A script whose ranks fail as its arguments say."""
    script = tmp_path / "sleeps.py"
    script.write_text(SLEEPS)
    return script


def test_the_others_go_on_and_the_job_ends_well(two: Hosts, sleeps: Path) -> None:
    job = run(two, 2, "2,2", sleeps, "exit", "1,3", "1")
    assert job.code == 0, job
    assert sorted(job.stdout.split("\n")[:2]) == ["done 0", "done 2"]
    for place in ("rank 1 of 4 on host0", "rank 3 of 4 on host1"):
        assert f"{place} failed with exit code 7; the others go on (--max-failures)" in job.stderr


def test_one_failure_too_many_ends_the_job(two: Hosts, sleeps: Path) -> None:
    """Each host alone has as many as the job may have."""
    job = run(two, 1, "2,2", sleeps, "exit", "1,3", "60")
    assert job.code == 7, job
    assert "done" not in job.stdout


@pytest.mark.parametrize("failures", [2, fast_if(False, 1)])
def test_a_host_is_as_many_failures_as_it_has_ranks(
    two: Hosts, sleeps: Path, failures: int
) -> None:
    job = run(two, failures, "2,2", sleeps, "way", "3", "1" if failures == 2 else "60")
    assert "host1: the way to it was killed by signal 9" in job.stderr, job
    if failures == 1:
        assert job.code != 0, job
        return
    assert job.code == 0, job
    for rank in (2, 3):
        assert f"rank {rank} of 4 on host1 failed with its host" in job.stderr, job


@pytest.mark.parametrize("training", [fast_if(False, "loop"), "fit"])
def test_shards_go_on_without_a_worker_of_another_host(
    two: Hosts, tmp_path: Path, training: str
) -> None:
    script = tmp_path / "server.py"
    script.write_text(FIT if training == "fit" else program("None", DIES_IN_MID_PUSH, CALL="2"))
    job = run(two, 1, "1,2", script)
    assert job.code == 0, job
    of_rank = results(job)
    assert sorted(of_rank) == [0, 2]
    of_worker = {w: [e[3] for e in of_rank[0]["log"] if e[1] == 0 and e[2] == w] for w in (0, 1)}
    count = 30 if training == "fit" else 12
    assert of_worker[1] == list(range(count))
    assert len(of_worker[0]) in ((3,) if training == "fit" else (5, 6)), of_worker


# Of the workers on the other host the first one stops; then the second one dies. The server lets
# the first one go on when it knows of the second one.
STOPPED = """
import os, signal, time
import keras, numpy as np
import ringar
ringar.init(deadline=30)
rank = ringar.rank()
pids = ringar.allgather(np.array([os.getpid()]))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
server = ringar.ParameterServer(model, keras.optimizers.SGD(0.1), servers=[0])
if server.is_worker:
    server.pull()
    server.push([np.ones(v.shape, "float32") for v in server.variables])
    server.replica.wait_until_taken()
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
if rank == 2:
    while open(f"/proc/{pids[1]}/stat").read().rsplit(")", 1)[1].split()[0] != "T":
        time.sleep(0.05)
    time.sleep(1.5)  # the server is looking after the one that has stopped
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 0:
    give_up = time.monotonic() + 20
    while 2 in server._service.participants and time.monotonic() < give_up:
        time.sleep(0.05)
    print("participants", server._service.participants, flush=True)
    os.kill(int(pids[1]), signal.SIGCONT)
server.close()
if rank == 0:
    print("versions", [shard.version for shard in server.shards.values()], flush=True)
"""


@pytest.mark.slow
def test_a_worker_that_stops_does_not_hide_one_that_dies(two: Hosts, tmp_path: Path) -> None:
    script = tmp_path / "stopped.py"
    script.write_text(STOPPED)
    job = run(two, 1, "1,2", script)
    assert job.code == 0, job
    assert job.stdout.splitlines() == ["participants [1]", "versions [2]"], job
