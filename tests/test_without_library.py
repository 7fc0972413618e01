"""One rank without the native library does what one rank does with it, on every system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ringar
from ringar.launchers.command_line import cli
from tests.plugin.jobs import ROOT

pytestmark = pytest.mark.job

#: Prints results, by their bits, and errors of one rank; needs no TensorFlow.
CALLS = """
import hashlib, json, pathlib, sys
import ml_dtypes, numpy as np
import ringar

def show(call):
    try:
        result = call()
    except Exception as error:
        print(type(error).__name__, error)
        return
    if isinstance(result, tuple):
        result = np.concatenate([part.view(np.uint8).ravel() for part in result])
    if isinstance(result, np.ndarray):
        result = (result.dtype, result.shape, hashlib.sha256(result.tobytes()).hexdigest())
    print(result)

ringar.init(start_timeout=5)
ringar.start_timeline("timeline.json")
rng = np.random.default_rng(1)
names = ["float16", ml_dtypes.bfloat16, "float32", "float64", "int8", "uint8", "int32", "int64",
         "bool", "int16", "uint64", "complex64"]
factors = [{}, {"prescale_factor": 0.1}, {"prescale_factor": 1 / 3, "postscale_factor": 1e30}]
for dtype in names:
    values = (rng.normal(size=(7, 3)) * 40).astype(dtype)
    for op in (ringar.Sum, ringar.Average, ringar.Min, ringar.Product):
        for scale in factors:
            show(lambda: ringar.allreduce(values, op, name="x", **scale))
    show(lambda: ringar.reducescatter(values, ringar.Sum))
    for array in (values, values[:0], values[0, 0]):
        show(lambda: ringar.allgather(array))
        show(lambda: ringar.alltoall(array))
        show(lambda: ringar.broadcast(array, name="b"))
    for splits in ([7], [6], [3, 4], [-7], []):
        show(lambda: ringar.alltoall(values, splits))
    show(lambda: ringar.broadcast(values, 2))
    window = ringar.Window(20, dtype, name="w", chunk_bytes=64)
    rows, flat = [3, 0, 3], values.ravel()
    show(lambda: window.put(0, flat[:11], 5))
    for options in ({}, {"lock": False}, {"atomic": True}):
        show(lambda: window.accumulate(0, flat[2:9], 7, **options))
        show(lambda: window.scatter_add(0, rows, values[:3], **options))
        before = window.gather(0, rows, 3)
        show(lambda: window.update(0, rows, before, before + values[:3], **options))
        show(lambda: window.get(0, versions=True))
    show(lambda: window.fetch_add(0, 2, 3))
    show(lambda: window.get(0, 18, 3))
    show(lambda: window.get(1))
    show(lambda: window.gather(0, [7], 3))
    show(lambda: window.version(0, 0))
    window.close()
    show(lambda: window.get(0))
show(lambda: ringar.Window(-1))
show(lambda: ringar.Window(3, chunk_bytes=7))
first = ringar.add_process_set([0])
show(lambda: ringar.allreduce(np.ones(2), process_set=first, name="of a set"))
show(lambda: ringar.allgather(np.array(1), process_set=first))
ringar.remove_process_set(first)
show(lambda: ringar.add_process_set([0, 0]))
show(lambda: ringar.broadcast_object({"a": 1}))
ringar.barrier()
ringar.stop_timeline("timeline.json")
events = json.loads(pathlib.Path("timeline.json").read_text())
for event in events:
    details = event.get("args", {})
    kept = {key: value for key, value in details.items() if not key.endswith("_us")}
    if event["ph"] == "M" or event.get("name", "").split()[0] in ("allreduce", "alltoall"):
        print(event["ph"], event["name"], event["tid"], kept)
print(ringar.stats())
window = ringar.Window(2)
ringar.shutdown()
show(lambda: window.get(0))
show(ringar.rank)
ringar.init()
print(ringar.size(), ringar.local_rank(), ringar.stats("collective"))
"""

#: Tests of what the library brings: its ops in graphs, its custom calls; and of forks.
OF_THE_LIBRARY = (
    "tests/collectives/test_allreduce.py::test_what_the_engine_is_told",
    "tests/collectives/test_custom_call.py",
    "tests/collectives/test_gradients.py::test_gradients_name_the_wire",
    "tests/collectives/test_order.py::test_calls_and_conditionals_with_collectives_keep_the_order_of_the_program",
    *map(
        "tests/collectives/test_repeats.py::test_{}".format,
        (
            "graph_numbers_its_calls",
            "number_of_calls_that_are_remembered",
            "other_values[asarray]",
            "other_values[constant]",
        ),
    ),
    "tests/collectives/test_restart.py::test_a_forked_child_is_no_rank",
    "tests/test_data.py::test_workers_of_a_py_dataset",
)

FEW = (
    "tests/collectives/test_alltoall.py",
    "tests/collectives/test_statistics.py",
    "tests/keras/test_callbacks.py",
    "tests/keras/test_tape.py",
)
MANY = (
    "tests/collectives",
    "tests/test_data.py",
    *map("tests/keras/test_{}.py".format, ("offload", "optimizer", "metrics", "uneven", "saving")),
)


def without_library(*arguments: str | Path, **settings: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.without_library", *map(str, arguments)]
    options: dict = {"capture_output": True, "text": True, "check": False, "timeout": 110}
    return subprocess.run(command, **(options | settings))


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_arrays_windows_and_errors_are_those_of_the_library(tmp_path: Path, system: str) -> None:
    script = tmp_path / "calls.py"
    script.write_text(CALLS)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    settings: dict = {"cwd": tmp_path, "env": environment}
    process = without_library(system, script, **settings)
    assert process.returncode == 0, process.stderr
    command = [sys.executable, str(script)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, **settings)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) > 500
    assert process.stdout == result.stdout


@pytest.mark.parametrize("variables", [{"RINGAR_SIZE": "2"}, {"OMPI_COMM_WORLD_SIZE": "2"}])
def test_ranks_of_a_launcher_are_refused(tmp_path: Path, variables: dict[str, str]) -> None:
    script = tmp_path / "job.py"
    script.write_text("import ringar\nringar.init()\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    job = without_library("darwin", script, env=environment)
    assert job.returncode == 1
    assert "expected ringar's native library for a job of several ranks" in job.stderr
    assert "macOS" in job.stderr
    assert "Linux on x86-64" in job.stderr


def test_the_launcher_of_another_system_runs_one_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "job.py"
    script.write_text("import os, sys\nprint(os.environ['A'])\nsys.exit(7)\n")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cli.main(["-np", "1", "-x", "A=5", str(script)]) == 7
    assert capfd.readouterr().out == "5\n"
    for options in (["-np", "2"], ["-H", "a:1,b:1"], ["--min-np", "1"]):
        assert cli.main([*options, str(script)]) == 2
        error = capfd.readouterr().err
        assert f"expected one rank (-np 1), received {options[0]}" in error.replace("hosts (", "")
        assert "macOS" in error
    with pytest.raises(ringar.errors.UnsupportedError, match=r"macOS .*run on Linux .* WSL"):
        ringar.run(print, np=2)


@pytest.mark.deadline(900)
@pytest.mark.parametrize(
    ("system", "files"),
    [
        pytest.param("win32", FEW, id="few"),
        pytest.param("win32", MANY, marks=pytest.mark.slow, id="win32"),
        pytest.param("darwin", MANY, marks=pytest.mark.slow, id="darwin"),
    ],
)
def test_the_tests_of_one_rank_pass(system: str, files: tuple[str, ...]) -> None:
    dropped = [f"--deselect={test}" for test in OF_THE_LIBRARY]
    tests = without_library(system, "-q", *dropped, *files, cwd=ROOT, timeout=850)
    assert tests.returncode == 0, tests.stdout[-5000:] + tests.stderr[-2000:]
