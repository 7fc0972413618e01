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
import os, signal, time
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
master = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
spark = master.getOrCreate()
assert ringar.spark.run(mean, [10], num_proc=2) == [10.5, 10.5]
assert ringar.spark.run(lambda: os.environ["WORD"], env={"WORD": "x"}) == ["x", "x"]
expect(ringar.errors.RankError, "rank 1 of 2", ringar.spark.run, dies, num_proc=2)
expect(KeyError, "no such word", ringar.spark.run, fails, num_proc=2)
expect(RuntimeError, "all tasks at once", ringar.spark.run, mean, [1], num_proc=3)
spark.stop()
print("all is well")
"""


def test_a_function_on_tasks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    job = run_job(None, [sys.executable, str(script)], deadline=380)
    assert job.code == 0, job
    assert "all is well" in job.stdout
    assert "[1] rank 1" in job.stdout
