"""`ringar.ray.RayExecutor` on a Ray that the tests start."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ringar.ray import RayExecutor
from tests.plugin import run_job
from tests.plugin.jobs import ROOT

pytest.importorskip("ray", reason="no Ray: make test-clusters")
pytestmark = [pytest.mark.job, pytest.mark.slow, pytest.mark.deadline(300)]

SCRIPT = """
import numpy as np
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
import ringar
from tests.clusters.functions import expect

ray.init(num_cpus=4, num_gpus=4, include_dashboard=False, logging_level="ERROR")

def train(steps):
    import keras
    ringar.init()
    keras.utils.set_random_seed(ringar.rank())
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(ringar.DistributedOptimizer("sgd"), "mse")
    rng = np.random.default_rng(ringar.rank())
    x = rng.normal(size=(16 * steps, 4)).astype("float32")
    model.fit(x, x.sum(1), batch_size=16, verbose=0, callbacks=[ringar.callbacks.Distributed()])
    return ringar.rank(), ringar.size(), [w.tolist() for w in model.get_weights()]

class Counter:
    def __init__(self, count, step=1):
        self.count, self.step = count, step

    def advance(self):
        self.count += self.step
        return self.count

def fails():
    ringar.init()
    if ringar.rank() == 1:
        raise ValueError("one is bad")
    ringar.barrier()

broken = ringar.ray.RayExecutor(2)
from ringar.ray.actors import Member
serve = Member.serve
Member.serve = lambda self, variable, index: 1 / 0
expect(ray.exceptions.RayTaskError, "ZeroDivisionError", broken.start)
Member.serve = serve
executor = ringar.ray.RayExecutor(2)
expect(RuntimeError, "expected to be started", executor.run, train)
executor.start(Counter, [5], {"step": 2})
expect(RuntimeError, "started once", executor.start)
(zero, two, weights), (one, _, others) = executor.run(train, [3])
assert (zero, one, two) == (0, 1, 2) and weights == others
assert executor.execute(Counter.advance) == [7, 7]
assert executor.execute_single(Counter.advance) == 9
assert executor.execute(lambda counter: counter.count) == [9, 7]
expect(ValueError, "one is bad", executor.run, fails)
expect(ringar.errors.RankError, "they have ended", executor.run, train)
executor.shutdown()

group = placement_group([{"CPU": 2}, {"CPU": 2}])
with ringar.ray.RayExecutor(cpus_per_worker=2, placement_group=group) as executor:
    assert executor.num_workers == 2
    assert executor.run(lambda: 1) == [1, 1]
    other = ringar.ray.RayExecutor(2, timeout=3)
    expect(ringar.errors.DeadlineError, "placement group", other.start)
remove_placement_group(group)

# As a trial of Ray Tune, which holds the first bundle of its group.
group = placement_group([{"CPU": 1}] * 3)

@ray.remote(num_cpus=1)
class Trial:
    def train(self):
        group = ray.util.get_current_placement_group()
        with ringar.ray.RayExecutor(2, placement_group=group) as executor:
            return executor.run(lambda: 1)

strategy = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
trial = Trial.options(scheduling_strategy=strategy).remote()
assert ray.get(trial.train.remote()) == [1, 1]
ray.kill(trial)
remove_placement_group(group)

with ringar.ray.RayExecutor(num_hosts=1, num_workers_per_host=3, env={"WORD": "x"}) as executor:
    assert executor.run(lambda: __import__("os").environ["WORD"]) == ["x"] * 3
with ringar.ray.RayExecutor(2, gpus_per_worker=2) as executor:
    seen = executor.run(lambda: __import__("os").environ["CUDA_VISIBLE_DEVICES"])
    assert sorted(seen) == ["0,1", "2,3"], seen
expect(ValueError, "`num_workers`", ringar.ray.RayExecutor)
expect(ValueError, "`num_workers`", ringar.ray.RayExecutor, 3, num_hosts=2)
print("all is well")
ray.shutdown()
"""


@pytest.mark.parametrize(
    "numbers",
    [
        {"num_workers": 0},
        {"num_hosts": 0},
        {"num_hosts": -2, "num_workers_per_host": -2},
        {"num_workers": 2, "num_workers_per_host": 0},
    ],
)
def test_numbers_that_are_none(numbers: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be 1 or more"):
        RayExecutor(**numbers)  # type: ignore[arg-type]


def test_an_executor() -> None:
    job = run_job(None, SCRIPT, deadline=280)
    assert job.code == 0, job
    assert "all is well" in job.stdout
    assert "ValueError: one is bad" in job.stderr


def test_the_example() -> None:
    """An actor is killed in it; the accuracy is that of two ranks that are not disturbed."""
    command = [sys.executable, str(ROOT / "examples" / "ray_train.py"), "--lose"]
    job = run_job(None, command, deadline=280, env={"RINGAR_GRACE_SCALE": "0.2"}).check()
    ends = re.findall(r"rank \d of \d in the end: accuracy ([\d.]+)%", job.stdout)
    assert ends, job
    assert len(set(ends)) == 1, job
    assert float(ends[0]) > 94, job
    assert "is lost: the way to its host ended" in job.stderr, job


ELASTIC = """
import sys, threading, time
from pathlib import Path
import ray
import ringar
from ringar.errors import DeadlineError
from tests.clusters.functions import expect, expect_one_loss, grow
from tests.elastic.functions import add_up

folder = Path(sys.argv[1])

ray.init(num_cpus=3, include_dashboard=False, logging_level="ERROR")

@ray.remote(num_cpus=1)
class Blocker:
    def wait(self):
        pass

blocker = Blocker.remote()
ray.get(blocker.wait.remote())

# An actor is killed, and its rank with it. Ray starts it again: its rank joins.
options = {"env": {"RINGAR_GRACE_SCALE": "0.2"}}
with ringar.ray.RayExecutor(min_workers=1, max_workers=2, **options) as executor:
    args = [str(folder), 2, "killed", True]
    expect_one_loss(executor.run(add_up, args, timeout=150))
    expect(RuntimeError, "ranks that stay", executor.execute_single, print)

# There is room for two of three, until another actor ends: a third rank joins.
class Counter:
    def __init__(self, count):
        self.count = count

with ringar.ray.RayExecutor(min_workers=2, max_workers=2, **options) as executor:
    executor.shutdown()
    executor.start(Counter, [5])
    assert executor.execute(lambda counter: counter.count) == [5, 5]

def make_room():
    while not (folder / "2").exists():
        time.sleep(0.1)
    ray.kill(blocker)

with ringar.ray.RayExecutor(min_workers=2, max_workers=3, **options) as executor:
    threading.Thread(target=make_room, daemon=True).start()
    assert executor.run(grow, [str(folder), 3], timeout=120) == [[2, 3]] * 3
print("grown", flush=True)

executor = ringar.ray.RayExecutor(min_workers=4, elastic_timeout=3)
expect(DeadlineError, "expected 4 processes of the cluster within 3 s, received", executor.start)
expect(ValueError, "`min_workers`", ringar.ray.RayExecutor, 2, min_workers=1)
expect(ValueError, "`min_workers`", ringar.ray.RayExecutor, 2, max_workers=1)
expect(ValueError, "`max_workers` no less", ringar.ray.RayExecutor, min_workers=2, max_workers=1)
print("all is well")
ray.shutdown()
"""


def test_an_elastic_executor(tmp_path: Path) -> None:
    job = run_job(None, ELASTIC, args=[str(tmp_path)], deadline=280)
    assert job.code == 0, job
    assert "all is well" in job.stdout
