"""The harness: plans and tables as data, and one small real run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks import allreduce, peers
from benchmarks.collectives import __main__ as collectives
from benchmarks.collectives import measure, worker
from benchmarks.collectives import report as collective_report
from benchmarks.harness import processes, results
from benchmarks.harness.command import parse_size
from benchmarks.harness.definitions import DEFINITIONS
from benchmarks.harness.series import Series
from benchmarks.peers import ringar_group

pytestmark = pytest.mark.job


def test_sizes_are_read() -> None:
    assert [parse_size(text) for text in ("4", "64K", "16m", "1G")] == [
        4,
        65536,
        16 << 20,
        1 << 30,
    ]
    for text in ("", "0", "4X", "-1", "K"):
        with pytest.raises(argparse.ArgumentTypeError, match="expected a size"):
            parse_size(text)


def test_every_adapter_says_what_it_is() -> None:
    assert {"ringar_engine", "ringar_in_place", "ringar_op", "memcpy", "openmpi", "mpich",
            "intelmpi", "gloo", "horovod", "tensorflow_collectives",
            } <= set(peers.names())  # fmt: skip
    with pytest.raises(ValueError, match="peer must be a file or one of"):
        peers.load("nothing")


def test_rows_have_the_rates_of_nccl_tests() -> None:
    series = {("memcpy", 1 << 20): Series([[1e-3, 3e-3, 2e-3], [4e-3], [6e-3]])}
    (row,) = collective_report.rows(series, 4, ["memcpy"])
    assert (row["seconds"], row["min"], row["max"]) == (4e-3, 2e-3, 6e-3)
    assert row["algbw"] == pytest.approx((1 << 20) / 4e-3 / 1e9)
    assert row["busbw"] == pytest.approx(row["algbw"] * 1.5)
    assert "1 MiB" in collective_report.table_text([row])


def test_resnet50_has_214_gradients() -> None:
    sizes = ringar_group.resnet50_gradients()
    assert len(sizes) == 214
    assert sum(sizes) == 25_583_592


class FaultyPeer:
    """Right at the first call only."""

    rank, size = 0, 2

    def barrier(self) -> None: ...

    def allreduce(self, array: np.ndarray) -> Callable[[], np.ndarray]:
        results = [DEFINITIONS["allreduce"].expected(array.size, 0, 2)]

        def run() -> np.ndarray:
            return results[0]

        return run

    def broadcast(self, array: np.ndarray) -> Callable[[], np.ndarray]:
        return lambda: array  # right on the root, and in place

    def reducescatter(self, array: np.ndarray) -> Callable[[], np.ndarray]:
        return lambda: array  # too long


def test_wrong_results_are_counted() -> None:
    counts = {name: worker.measure(FaultyPeer(), name, 64, True, 1)["wrong"]
             for name in ("allreduce", "broadcast", "reducescatter")}  # fmt: skip
    assert counts == {"allreduce": 16, "broadcast": 0, "reducescatter": 16}


@pytest.mark.parametrize(
    ("collective", "peer"),
    [
        ("allgather", "ringar_op"),
        pytest.param("reducescatter", "ringar_engine", marks=pytest.mark.slow),
        pytest.param("broadcast", "ringar_op", marks=pytest.mark.slow),
        pytest.param("alltoall", "ringar_engine", marks=pytest.mark.slow),
    ],
)
def test_other_collectives_are_right(
    collective: str, peer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = collectives.main(
        ["--collective", collective, "--peers", peer, "--sizes", "4,100,1M", "--rounds", "1",
         "--budget", "1M"]
    )  # fmt: skip
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert f"# {collective} on 2 ranks" in printed
    assert DEFINITIONS[collective].size_is in printed
    assert printed.count(peers.load(peer).TITLE) == 3, printed


def test_a_peer_without_the_collective_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert collectives.main(["--collective", "alltoall", "--peers", "ringar_group"]) == 0
    assert "not measured (it has no alltoall)" in capsys.readouterr().out


def test_small_run_is_right_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = str(tmp_path / "figures")
    code = allreduce.main(
        ["--peers", "ringar_in_place,horovod", "--sizes", "4,64K,1M", "--rounds", "1",
         "--budget", "1M", "--output", output]
    )  # fmt: skip
    printed = capsys.readouterr().out
    assert code == 0
    assert "ringar (engine, in place)" in printed
    data = json.loads(Path(output + ".json").read_text())
    assert [row["bytes"] for row in data["rows"] if row["peer"] == "ringar_in_place"] == [
        4,
        65536,
        1 << 20,
    ]
    (kind,) = results.load_all()
    assert kind["runs"]["allreduce-2-ranks"]["rows"] == data["rows"]
    assert all(row["wrong"] == 0 for row in data["rows"])
    assert {"cpu", "cores", "memory_gib", "versions", "commit"} <= set(data["machine"])
    if "horovod" in data["missing"]:
        assert "Horovod: not measured" in printed
    assert Path(output + ".png").read_bytes().startswith(b"\x89PNG")


def test_a_wrong_result_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = {"size": 4, "times": [1e-6], "wrong": 1}
    reports = [{"version": "", "results": [result]}]
    monkeypatch.setattr(measure, "measure_peer", lambda *_arguments, **_options: reports)
    assert allreduce.main(["--peers", "memcpy", "--sizes", "4", "--rounds", "1"]) == 1
    assert "wrong" in capsys.readouterr().err


def test_a_job_that_outlasts_its_deadline_is_ended() -> None:
    with pytest.raises(processes.JobFailedError, match="no end after"):
        processes.run_command(["sleep", "60"], deadline=0.5)
    with pytest.raises(processes.JobFailedError, match="exit code 3"):
        processes.run_command(["sh", "-c", "echo last words; exit 3"], deadline=10)
