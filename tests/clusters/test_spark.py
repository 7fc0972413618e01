"""`ringar.spark.run` on a cluster of Spark that the tests start: two workers on this machine."""

from __future__ import annotations

import re
import shutil
import sys
import venv
from pathlib import Path

import pytest

from tests.plugin import run_job
from tests.plugin.jobs import ROOT

pytest.importorskip("pyspark", reason="no PySpark: make test-clusters")
pytestmark = [
    pytest.mark.job,
    pytest.mark.slow,
    pytest.mark.deadline(400),
    pytest.mark.skipif(shutil.which("java") is None, reason="no java: default-jre-headless"),
]

# Its tasks are in the environment of the tests, whatever `python3` is the first of PATH.
SPARK = {"PYSPARK_PYTHON": sys.executable}

SCRIPT = """
import os, signal, sys, time
import numpy as np
from pyspark.sql import SparkSession
import ringar
from tests.clusters.functions import expect

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
expect(RuntimeError, "expected Spark to run all its tasks", ringar.spark.run, mean, [1], num_proc=3)
args = [ringar.errors.DeadlineError, "within 2 s, received 0", ringar.spark.run, mean, [1]]
took = seconds(expect, *args, num_proc=3, start_timeout=2)
assert took < 11, took  # Spark gives up what it would try again
spark.stop()
print("all is well")
"""


def test_a_function_on_tasks(tmp_path: Path) -> None:
    gpus = tmp_path / "gpus.sh"
    gpus.write_text('#!/bin/sh\necho \'{"name": "gpu", "addresses": ["7"]}\'\n')
    gpus.chmod(0o755)
    job = run_job(None, SCRIPT, args=[str(gpus)], env=SPARK, deadline=380)
    assert job.code == 0, job
    assert "all is well" in job.stdout
    assert "[1] rank 1" in job.stdout


def test_the_example() -> None:
    program = str(ROOT / "examples" / "spark_train.py")
    command = [sys.executable, program, "--master", "local-cluster[2,1,1024]"]
    job = run_job(None, command, env=SPARK, deadline=380).check()
    assert "2 ranks, loss of the last epoch" in job.stdout, job
    match = re.search(r"accuracy: ([\d.]+)%", job.stdout)
    assert match is not None, job
    assert float(match[1]) > 90, job


OTHER_PYTHON = """
import sys
from pyspark.sql import SparkSession
import ringar
from tests.clusters.functions import expect

settings = {"spark.ui.enabled": "false"}
spark = SparkSession.builder.master("local-cluster[2,1,1024]").config(map=settings).getOrCreate()
text = f". Set PYSPARK_PYTHON={sys.executable} before"
for run in ringar.spark.run, ringar.spark.run_elastic:
    expect(RuntimeError, text, run, print, num_proc=2)
spark.stop()
print("all is well")
"""


def test_tasks_in_a_python_without_ringar(tmp_path: Path) -> None:
    venv.create(tmp_path)
    environment = {"PYSPARK_PYTHON": str(tmp_path / "bin/python")}
    job = run_job(None, OTHER_PYTHON, env=environment, deadline=380).check()
    assert "all is well" in job.stdout, job


ELASTIC = """
import sys, threading, time
from pathlib import Path
from pyspark.sql import SparkSession
import ringar
from tests.clusters.functions import expect, expect_one_loss, grow
from tests.elastic.functions import add_up

folder = Path(sys.argv[1])

run = ringar.spark.run_elastic
settings = {"spark.ui.enabled": "false", "spark.python.worker.reuse": "false"}
spark = SparkSession.builder.master("local-cluster[2,1,1024]").config(map=settings).getOrCreate()
env = {"RINGAR_GRACE_SCALE": "0.2"}

# A task is killed, and its rank with it. Spark tries it again: its rank joins.
args = [str(folder), 2, "killed", True]
expect_one_loss(run(add_up, args, num_proc=2, min_num_proc=1, env=env, timeout=150))

# Another job holds one of the two places, until the only rank trains: a second one joins.
def hold(rows):
    Path(folder, "held").touch()
    while not Path(folder, "1").exists():
        time.sleep(0.1)
    return rows

holder = spark.sparkContext.parallelize([0], 1).mapPartitions(hold)
threading.Thread(target=holder.collect, daemon=True).start()
while not Path(folder, "held").exists():
    time.sleep(0.1)
grown = run(grow, [str(folder), 2], num_proc=1, max_num_proc=2, env=env, timeout=150)
assert grown == [[1, 2]] * 2, grown
print("grown", flush=True)

# There is room for two of three tasks.
assert run(lambda: 1, num_proc=3, min_num_proc=2, env=env) == [1, 1]
text = "expected 3 processes of the cluster within 6 s, received 2"
expect(ringar.errors.DeadlineError, text, run, print, num_proc=3, start_timeout=6)
text = "`min_num_proc` <= `num_proc`"
expect(ValueError, text, run, print, num_proc=2, min_num_proc=3)
expect(ValueError, text, run, print, num_proc=2, max_num_proc=1)
spark.stop()
print("all is well")
"""


def test_an_elastic_job(tmp_path: Path) -> None:
    job = run_job(None, ELASTIC, args=[str(tmp_path)], env=SPARK, deadline=380)
    assert job.code == 0, job
    assert "all is well" in job.stdout
