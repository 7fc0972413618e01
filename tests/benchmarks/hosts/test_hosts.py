"""What the benchmark of hosts makes of its measurements; on plain data, and once for real."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hosts import __main__ as hosts
from benchmarks.hosts import report as hosts_report
from benchmarks.simulate import measured
from tests.hosts import Hosts, find_open_mpi, unavailable

MIB = 1 << 20


def row(peer: str, size: int, seconds: float, **changes: Any) -> dict[str, Any]:
    """A row of 4 hosts whose bound is 1 s."""
    parameters = {"latency": 1e-4, "bandwidth": 3.7e7, "reduction": 4e9,
                  "local_latency": 5e-6, "local_bandwidth": 8e9}  # fmt: skip
    return {"hosts": 4, "ranks_per_host": 1, "rate_mbit": 300.0, "mtu": 9000,
            "delay": 0.0, "payload_rate": 3.7e7, "stream_rate": 3.71e7, "bytes": size, "peer": peer,
            "algorithm": "auto", "bound": 1.0, "of_bound": 1 / seconds, "sent": 1.01 * size,
            "sent_payload": size, "due": size, "parameters": parameters, "seconds": seconds,
            "min": seconds, "max": seconds, "fastest": seconds, "wrong": 0, **changes}  # fmt: skip


def verdicts(rows: list[dict[str, Any]], training: list[dict[str, Any]]) -> list[str]:
    return [target.row()[-1] for target in hosts_report.targets(rows, training)]


def test_targets_of_what_was_measured() -> None:
    rows = [
        row("ringar", 32 * MIB, 1.01),
        row("Open MPI", 32 * MIB, 2.0),
        row("ringar", 32 * MIB, 1.0, hosts=2, ranks_per_host=2, algorithm="hierarchical"),
        row("ringar", 32 * MIB, 1.5, hosts=2, ranks_per_host=2, algorithm="ring", sent=2e9),
        row("ringar", 1024, 40e-6),
        row("Open MPI", 1024, 50e-6),
        row("ringar", 1024, 33e-6, hosts=2),
        row("ringar over MPI", 1024, 31e-6, hosts=2),
        row("ringar", 65536, 5e-3, hosts=8),
        row("Open MPI", 65536, 6e-3, hosts=8),
        row("ringar", 64 * MIB, 20e-3, hosts=2),
    ]
    training = [{"ratio": 1.1}]
    assert verdicts(rows, training) == ["yes"] * 8
    rows[0].update(of_bound=0.93, sent=1.03 * 32 * MIB)
    rows[2].update(sent=1.5 * 32 * MIB)
    rows[4].update(seconds=60e-6)
    rows[6].update(seconds=36e-6)
    rows[8].update(seconds=7e-3)
    rows[10].update(seconds=30e-3)
    assert verdicts(rows, [{"ratio": 1.2}]) == ["no"] * 8


def test_targets_of_nothing() -> None:
    assert verdicts([], []) == ["not measured"] * 8


def test_a_training_step_is_compared_with_its_round() -> None:
    def rank(overlap: list[float], communicate: list[float]) -> dict[str, Any]:
        times = {"compute": [1.0, 2.0, 1.0], "communicate": communicate, "both": overlap}
        return {"rate_mbit": 300.0, "gradient_bytes": 10, "seconds": times, "processor": times,
                "wrong": 1}  # fmt: skip

    reports = [rank([1.1, 2.1, 1.2], [0.9, 2.0, 1.0]), rank([1.0, 2.0, 1.3], [1.0, 1.0, 1.2])]
    row = hosts_report.training_row(reports)
    assert row["ratio"] == pytest.approx(1.3 / 1.2)
    assert row["min"] == pytest.approx(2.1 / 2.0)
    assert row["max"] == pytest.approx(1.1)
    assert (row["compute"], row["communicate"], row["both"]) == (1.0, 1.2, 1.3)
    assert row["wrong"] == 2


def test_the_cost_model_is_checked_with_ringar_s_large_rows(tmp_path: Path) -> None:
    rows = [row("ringar", 8 * MIB, 0.34), row("Open MPI", 8 * MIB, 0.7), row("ringar", 1024, 1e-4)]
    data = hosts_report.as_data(rows)
    assert (data["rows"], data["others"]) == (rows[:1], rows[1:])
    path = tmp_path / "found.json"
    path.write_text(json.dumps(data))
    (read,), hosts = measured.read(path)
    assert (read.hosts, read.bytes, read.seconds) == (4, 8 * MIB, 0.34)
    assert list(hosts) == [2, 4, 8]


def test_cases_stay_within_the_rates_of_the_bound() -> None:
    assert {case.hosts for case in hosts.CASES} == {2, 4, 8}
    for case in hosts.CASES:
        assert 200 <= case.rate_mbit <= 500 or case.unlimited
        assert max(dict(case.sizes)) >= 8 * MIB


@pytest.mark.job
@pytest.mark.slow
@pytest.mark.deadline(150)
def test_a_short_run() -> None:
    pytest.importorskip("mpi4py")
    if (reason := unavailable()) or find_open_mpi() is None:
        pytest.skip(reason or "no mpirun of Open MPI")
    case = hosts.Case(2, sizes=((4 * MIB, 3), (1024, 20)))
    figures = hosts.Measured()
    hosts.measure(case, rounds=2, mtu=9000, outcome=figures)
    assert not figures.reasons, figures.reasons
    assert figures.errors == 0
    assert [(r["peer"], r["bytes"]) for r in figures.rows] == [
        (peer, size)
        for size in (4 * MIB, 1024)
        for peer in ("ringar", "ringar over MPI", "Open MPI")
    ]
    for row in figures.rows[:3]:
        assert row["due"] == 4 * MIB
        assert row["bound"] == pytest.approx(
            4 * MIB / Hosts(2, rate_mbit=500, mtu=9000).payload_rate
        )
        # A call may not be faster than the link, but for the burst that the bucket lets through.
        assert 0.5 < row["of_bound"] < 1.05
        assert row["sent_payload"] == pytest.approx(4 * MIB, rel=0.01)
        assert row["sent_payload"] < row["sent"] < 1.02 * 4 * MIB
    text = hosts_report.text(figures.rows, [], {"cores": 2, "cpu": "c", "memory_gib": 1,
                             "versions": {}, "commit": "c"}, 9000, figures.versions)  # fmt: skip
    assert "Open MPI v" in text
    assert "not measured" in text
    assert not math.isnan(figures.rows[0]["stream_rate"])
