"""Parameter servers when ranks die, stop, are slow, or fail."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from ringar.asynchronous.log import LOST
from tests.plugin import JobResult, fast_if, run_job

pytestmark = pytest.mark.job

# Ranks push to two shards of rank 0 in a loop; what one of them does in its step 5 is FAULT.
PROGRAM = """
import json, os, signal, subprocess, time
import keras, numpy as np
import ringar
from ringar.asynchronous import StaleSynchronous, replay
ringar.init(deadline=20)
rank, steps = ringar.rank(), 12
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
control = {control}
server = ringar.ParameterServer(model, keras.optimizers.SGD(1.0), 2, servers=[0], control=control)
clocks = []

def gradient(worker, step, value):
    return (0.125 * value - worker - 0.1 * step).astype("float32")

before = server.new_shards([np.array(v) for v in server.variables], keras.optimizers.SGD(1.0))
try:
    if server.is_worker:
        for step in range(steps):
            gradients = [gradient(server.worker, step, value) for value in server.pull()]
            if rank == 1 and step == 5:
                {fault}
            clocks.append(time.monotonic())
            server.push(gradients)
            time.sleep(0.02)
    server.close()
except ringar.errors.RingarError as error:
    print("RESULT", json.dumps(dict(rank=rank, error=str(error))), flush=True)
    raise SystemExit(0)
again = replay(server.log(), before, lambda worker, step, shards: [
    [gradient(worker, step, value) for value in values] for values in shards
])
same = all(a.tobytes() == b.tobytes() for shard in server.shards.values()
           for a, b in zip(shard.values(), again[shard.number], strict=True))
log = [list(entry) for entry in server.log()]
versions = [shard.version for shard in server.shards.values()]
result = dict(rank=rank, log=log, same=same, versions=versions, clocks=clocks)
print("RESULT", json.dumps(result), flush=True)
"""

DIES_IN_MID_PUSH = """
                write = server._mailboxes.data.put
                def put(*args, **kwargs):
                    put.calls = getattr(put, "calls", 0) + 1
                    if put.calls == CALL:
                        os.kill(os.getpid(), signal.SIGKILL)
                    write(*args, **kwargs)
                server._mailboxes.data.put = put
"""

DIES_AFTER_ITS_HEADER = """
                server._mailboxes.ring = lambda rank: os.kill(os.getpid(), signal.SIGKILL)
"""

# Under `fit`, rank 1 dies in the middle of an epoch.
FIT = """
import json, os, signal
import keras, numpy as np
import ringar
ringar.init(deadline=20)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
x = np.ones((40, 4), "float32")

class Dies(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if ringar.rank() == 1 and batch == 3:
            os.kill(os.getpid(), signal.SIGKILL)

with ringar.ParameterServer(model, keras.optimizers.SGD(0.01), servers=[0]) as server:
    if server.is_worker:
        model.compile(ringar.Downpour("sgd", server), "mse")
        callbacks = [ringar.callbacks.Distributed(), Dies()]
        model.fit(x, x.sum(1), batch_size=4, epochs=3, verbose=0, callbacks=callbacks)
print("RESULT", json.dumps(dict(rank=ringar.rank(), log=[list(e) for e in server.log()])))
"""

STOPS = """
                subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {os.getpid()}"])
                os.kill(os.getpid(), signal.SIGSTOP)
"""


def program(control: str, fault: str, **values: str) -> str:
    """The program, with what rank 1 does in its step 5."""
    for name, value in values.items():
        fault = fault.replace(name, value)
    return PROGRAM.replace("{control}", control).replace("{fault}", fault.strip())


def results(job: JobResult) -> dict[int, dict[str, Any]]:
    """What each rank of a job has printed."""
    entries = [json.loads(x[7:]) for x in job.stdout.splitlines() if x.startswith("RESULT")]
    return {entry["rank"]: entry for entry in entries}


def run(text: str) -> dict[int, dict[str, Any]]:
    """Run a program on three ranks, one of which may fail; return what each has printed."""
    job = run_job(3, text, launcher_args=["--no-prefix", "--max-failures", "1"], deadline=80)
    assert job.code == 0, job.stderr
    assert not job.leftovers, job.leftovers
    return results(job)


@pytest.mark.parametrize("call", [fast_if(False, 1), 2, fast_if(False, 4)])
def test_a_worker_killed_in_mid_push_pushes_all_or_nothing_to_a_shard(call: int) -> None:
    """Two shards: call 1 writes the head for the first one, call 4 is for the second one."""
    answers = run(program("None", DIES_IN_MID_PUSH, CALL=str(call)))
    assert sorted(answers) == [0, 2]
    server = answers[0]
    for shard in (0, 1):
        pushes = [e for e in server["log"] if e[1] == shard]
        of_worker = {w: [e[3] for e in pushes if e[2] == w and e[6]] for w in (0, 1)}
        assert of_worker[1] == list(range(12))
        assert of_worker[0] == list(range(5))
        assert server["versions"][shard] == 17
    assert server["same"]


def test_a_header_of_a_worker_that_has_died_counts() -> None:
    """It dies between the header and the doorbell, to the first shard."""
    answers = run(program("None", DIES_AFTER_ITS_HEADER))
    of_dead = [[e for e in answers[0]["log"] if e[1:3] == [shard, 0]] for shard in (0, 1)]
    applied = [[e[3] for e in entries if e[6]] for entries in of_dead]
    assert applied == [list(range(6)), list(range(5))]
    assert answers[0]["versions"] == [18, 17]
    assert [(e[0], e[3], e[7]) for e in of_dead[1] if not e[6]] == [(-1, 5, LOST)]
    assert answers[0]["same"]  # as the replay: the push is in the first shard alone


def test_fit_goes_on_without_a_worker() -> None:
    answers = run(FIT)
    assert sorted(answers) == [0, 2]
    of_worker = {w: [e[3] for e in answers[0]["log"] if e[2] == w] for w in (0, 1)}
    assert of_worker == {0: [0, 1, 2], 1: list(range(30))}


@pytest.mark.slow
def test_a_worker_that_stops_holds_the_others_at_the_bound() -> None:
    answers = run(program("StaleSynchronous(2)", STOPS))
    clocks = answers[2]["clocks"]
    pauses = [later - earlier for earlier, later in itertools.pairwise(clocks)]
    assert sum(pause > 1.0 for pause in pauses) == 1
    assert answers[0]["versions"] == [24, 24]


@pytest.mark.slow
def test_no_worker_waits_for_one_that_stops_without_a_bound() -> None:
    answers = run(program("None", STOPS))
    clocks = answers[2]["clocks"]
    assert max(later - earlier for earlier, later in itertools.pairwise(clocks)) < 1.0
    assert answers[0]["versions"] == [24, 24]


def test_a_server_that_dies_is_named_by_all_workers() -> None:
    fault = "os.kill(int(server_pid[0]), signal.SIGKILL)"
    text = PROGRAM.replace(
        "clocks = []", "clocks = []; server_pid = ringar.allgather(np.array([os.getpid()]))"
    )
    text = text.replace("{control}", "None").replace("{fault}", fault)
    job = run_job(3, text, launcher_args=["--no-prefix", "--max-failures", "1"], deadline=80)
    answers = results(job)
    assert set(answers) == {1, 2}
    for answer in answers.values():
        assert "expected rank 0 to be there" in answer["error"], answer


@pytest.mark.slow
def test_a_worker_that_raises_is_the_error_of_all() -> None:
    """In a step that TensorFlow has traced: not as an error of its graph."""
    text = FIT.replace("os.kill(os.getpid(), signal.SIGKILL)", 'raise KeyError("no such column")')
    text = text.replace("servers=[0]", "control=ringar.StaleSynchronous(1)")
    job = run_job(2, text, launcher_args=["--no-prefix"], deadline=80)
    expected = "RankError: rank 0 | ringar.ParameterServer: expected rank 1 to go on; received its"
    assert f"{expected} error KeyError: 'no such column'" in job.stderr
    assert "Graph execution error" not in job.stderr


# The worker is slow between its accesses; the server ends as soon as it can.
SLOW_TO_LEAVE = """
import time
import numpy as np
import keras
import ringar
ringar.init(deadline=20)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
with ringar.ParameterServer(model, keras.optimizers.SGD(0.1), servers=[0]) as server:
    if server.is_worker:
        write, ring = server._mailboxes.control.write, server._mailboxes.ring
        server._mailboxes.control.write = lambda *args: (write(*args), time.sleep(0.5))
        server._mailboxes.ring = lambda rank: (time.sleep(0.5), ring(rank))
        server.replica.push([np.ones(v.shape, "float32") for v in server.variables], [0])
print("RESULT", f'{{"rank": {ringar.rank()}}}')
"""


def test_a_server_may_end_before_a_slow_worker() -> None:
    job = run_job(2, SLOW_TO_LEAVE, launcher_args=["--no-prefix"], deadline=80).check()
    assert sorted(results(job)) == [0, 1]
