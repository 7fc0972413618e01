"""`ringar.spark.run` on a cluster of Spark that the tests start: two workers on this machine."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.plugin import run_job

pytest.importorskip("pyspark", reason="no PySpark: make test-clusters")
pytestmark = [
    pytest.mark.job,
    pytest.mark.slow,
    pytest.mark.deadline(400),
    pytest.mark.skipif(shutil.which("java") is None, reason="no java: default-jre-headless"),
]

SCRIPT = """
import os, signal, sys, time
import numpy as np
from pyspark.sql import SparkSession
import ringar

def expect(kind, text, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind}")

def mean(value):
    ringar.init()
    print("rank", ringar.rank(), flush=True)
    return float(ringar.allreduce(np.float32(value + ringar.rank())))

def dies():
    if os.environ["RINGAR_RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)

def fails():
    raise KeyError("no such word")

expect(RuntimeError, "active context", ringar.spark.run, mean, [1])
def seconds(function, *args, **kwargs):
    begin = time.monotonic()
    function(*args, **kwargs)
    return time.monotonic() - begin

check = "spark.scheduler.barrier.maxConcurrentTasksCheck"
settings = {
    "spark.ui.enabled": "false",
    f"{check}.interval": "5s",  # 15 s by default, and 40 times
    f"{check}.maxFailures": "2",
    "spark.worker.resource.gpu.amount": "1",
    "spark.worker.resource.gpu.discoveryScript": sys.argv[1],
    "spark.executor.resource.gpu.amount": "1",
    "spark.task.resource.gpu.amount": "1",
}
spark = SparkSession.builder.master("local-cluster[2,1,1024]").config(map=settings).getOrCreate()
expect(ValueError, "`num_proc`", ringar.spark.run, mean, [1], num_proc=0)
assert ringar.spark.run(mean, [10], num_proc=2) == [10.5, 10.5]
assert ringar.spark.run(lambda: os.environ["WORD"], env={"WORD": "x"}) == ["x", "x"]
gpus = ringar.spark.run(lambda: os.environ["CUDA_VISIBLE_DEVICES"], num_proc=2)
assert set(gpus) <= {"7", "7,7"}, gpus
expect(ringar.errors.RankError, "rank 1 of 2", ringar.spark.run, dies, num_proc=2)
expect(KeyError, "no such word", ringar.spark.run, fails, num_proc=2)
expect(RuntimeError, "all tasks at once", ringar.spark.run, mean, [1], num_proc=3)
args = [ringar.errors.DeadlineError, "within 2 s, received 0", ringar.spark.run, mean, [1]]
took = seconds(expect, *args, num_proc=3, start_timeout=2)
assert took < 11, took  # Spark gives up what it would try again
spark.stop()
print("all is well")
"""


def test_a_function_on_tasks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    gpus = tmp_path / "gpus.sh"
    gpus.write_text('#!/bin/sh\necho \'{"name": "gpu", "addresses": ["7"]}\'\n')
    gpus.chmod(0o755)
    job = run_job(None, [sys.executable, str(script), str(gpus)], deadline=380)
    assert job.code == 0, job
    assert "all is well" in job.stdout
    assert "[1] rank 1" in job.stdout
