"""What benchmarks.asynchronous makes of times, and one small real run beside PyTorch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.asynchronous import __main__ as local_steps
from benchmarks.harness import environments, jobs, launch
from benchmarks.peers import gloo
from tests.hosts import Hosts, unavailable


def reports(**ways: list[list[tuple[float, float]]]) -> list[dict[str, Any]]:
    """The reports of two ranks, given for each way the turns of each rank."""
    return [
        {"found": {name.replace("_", " "): ranks[rank] for name, ranks in ways.items()}, "wrong": 0}
        for rank in range(2)
    ]


def test_targets_compare_turns_with_each_other() -> None:
    ways = local_steps.by_way(
        reports(
            no_exchange=[[(1.0, 0.0), (2.0, 0.0)], [(0.5, 0.0), (2.0, 0.0)]],
            gradients=[[(9.0, 320.0), (9.0, 320.0)], [(9.0, 320.0), (9.0, 320.0)]],
            local_steps=[[(1.0, 20.0), (2.0, 20.0)], [(1.25, 20.0), (2.5, 20.0)]],
        )
    )
    assert ways["local steps"] == {"seconds": [1.25, 2.5], "bytes": 20.0, "wrong": 0}
    traffic_target, time_target = local_steps.targets(ways, 16)
    assert traffic_target.measured == [16]
    assert time_target.measured == [25]
    assert "| gradients " in local_steps.text(ways, 16)


def test_ranks_on_hosts_run_in_the_environment_of_a_peer(tmp_path: Path) -> None:
    class OneHost(list[Any]):
        agent = "agent"

    host = SimpleNamespace(name="host0", command=lambda *words: list(words))
    command = launch.on_hosts(cast(Hosts, OneHost([host])), 1, "tcp")
    assert command(jobs.THIS_ENVIRONMENT, 1, ["-m", "it"])[-3:] == [sys.executable, "-m", "it"]
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    assert command(tmp_path, 1, ["-m", "it"])[-4:] == ["env", str(python), "-m", "it"]


@pytest.mark.slow
@pytest.mark.job
@pytest.mark.deadline(900)
def test_a_small_run_beside_pytorch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if reason := unavailable():
        pytest.skip(reason)
    try:
        environments.ensure("gloo", gloo.REQUIREMENTS)
    except environments.CannotInstallError as error:
        pytest.skip(f"no PyTorch: {error}")
    path = tmp_path / "found"
    options = ["--rounds", "1", "--rate", "1000", "--period", "4", "--output", str(path)]
    code = local_steps.main(options)
    out = capsys.readouterr().out
    assert code == 0, out
    assert "not measured (" not in out
    report = json.loads(path.with_suffix(".json").read_text())
    ways = [report[f"PyTorch, {way}"] for way in ("no exchange", "gradients", "local steps")]
    assert [way["wrong"] for way in ways] == [0, 0, 0]
    baseline, gradients, local = (way["bytes"] for way in ways)
    assert baseline < local < gradients
