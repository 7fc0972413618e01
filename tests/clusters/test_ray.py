"""`ringar.ray.RayExecutor` on a Ray that the tests start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ringar.ray import RayExecutor
from tests.plugin import run_job

pytest.importorskip("ray", reason="no Ray: make test-clusters")
pytestmark = [pytest.mark.job, pytest.mark.slow, pytest.mark.deadline(300)]

SCRIPT = """
import numpy as np
import ray
from ray.util.placement_group import placement_group, remove_placement_group
import ringar

ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR")

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

def expect(kind, text, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind}")

broken = ringar.ray.RayExecutor(2)
serve = ringar.ray._Member.serve
ringar.ray._Member.serve = lambda self, variable, index: 1 / 0
expect(ray.exceptions.RayTaskError, "ZeroDivisionError", broken.start)
ringar.ray._Member.serve = serve
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
with ringar.ray.RayExecutor(num_hosts=1, num_workers_per_host=3, env={"WORD": "x"}) as executor:
    assert executor.run(lambda: __import__("os").environ["WORD"]) == ["x"] * 3
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


def test_an_executor(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    job = run_job(None, [sys.executable, str(script)], deadline=280)
    assert job.code == 0, job
    assert "all is well" in job.stdout
    assert "ValueError: one is bad" in job.stderr
