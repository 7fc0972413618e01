"""What is recorded for a kind of machine, the tables of the page, and the bound of a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import performance, targets
from benchmarks.harness import machine, results
from benchmarks.harness.report import KIB, MIB
from benchmarks.rates import __main__ as rates

MACHINE = {
    "cpu": "Maker(R) Processor 9.5 GHz",
    "cores": 2,
    "time": "2026-01-02T03:04:05",
    "commit": "c",
    "versions": {"tensorflow": "2.21.0"},
    "python": "3.12",
    "system": "Linux",
}


def run_of(sizes: list[int], seconds: float, **fields: Any) -> results.Run:
    rows = [{"peer": "ringar_engine", "bytes": size, "seconds": seconds} for size in sizes]
    return {"tried": {"sizes": sizes}, "rows": rows, "missing": {}, **fields}


@pytest.mark.parametrize(
    ("cpu", "cores", "name"),
    [
        ("AMD EPYC", 2, "amd-epyc-2-cores"),
        ("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", 64,
         "intel-xeon-platinum-8375c-2.90ghz-64-cores"),
        ("Neoverse-N1", 4, "neoverse-n1-4-cores"),
    ],
)  # fmt: skip
def test_a_kind_is_named_after_its_processor(cpu: str, cores: int, name: str) -> None:
    assert results.name_of(cpu, cores) == name


def test_the_newest_run_of_each_benchmark_is_kept(results_folder: Path) -> None:
    results.record("one", MACHINE, run_of([4, 8], 1.0))
    results.record("other", MACHINE, run_of([4], 1.0))
    results.record("one", {**MACHINE, "time": "2027"}, run_of([4, 8, 16], 2.0))
    (path,) = results_folder.iterdir()
    assert path.name == "maker-9.5-ghz-2-cores.json"
    (kind,) = results.load_all()
    assert (kind["cpu"], kind["cores"]) == (MACHINE["cpu"], 2)
    assert {name: run["time"][:4] for name, run in kind["runs"].items()} == {
        "one": "2027",
        "other": "2026",
    }
    assert [row["seconds"] for row in kind["runs"]["one"]["rows"]] == [2.0] * 3


def test_a_run_of_less_or_with_wrong_results_replaces_none(
    results_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results.record("one", MACHINE, run_of([4, 8], 1.0))
    results.record("one", MACHINE, run_of([4], 2.0))
    assert "has a run of one with more cases, of 2026-01-02" in capsys.readouterr().err
    results.record("one", MACHINE, run_of([4, 8], 3.0, wrong=1))
    (kind,) = results.load_all()
    assert kind["runs"]["one"]["rows"][0]["seconds"] == 1.0


def copies(read_own: float, write: float, read: float) -> list[dict[str, Any]]:
    titles = ("in its own cache", "to", "from")
    return [{"copy": t, "rate": r} for t, r in zip(titles, (read_own, write, read), strict=True)]


def test_bounds_depend_on_the_caches() -> None:
    def bound_of(rows: list[dict[str, Any]]) -> dict[str, float]:
        figures = targets.targets(targets.Figures({"rates": {"rows": rows}}))
        return {target.title: target.bound for target in figures}

    near, far = bound_of(copies(50e9, 30e9, 40e9)), bound_of(copies(45e9, 12e9, 19e9))
    for title, of_near, of_far in (
        ("allreduce 256 KiB to 16 MiB, of MPICH", 2.5, 1.5),
        ("allreduce 64 MiB, 256 MiB, of Open MPI", 4.5, 2.5),
        ("allreduce 64 MiB in place, of a memcpy", 0.8, 1.3),
    ):
        assert (near[title], far[title]) == (of_near, of_far)
    assert "share no cache" in rates.text(copies(45e9, 12e9, 19e9))


def test_targets_are_printed_with_the_processor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "describe", lambda: MACHINE)
    assert targets.main([]) == 1
    assert "make bench-targets" in capsys.readouterr().err
    rows = [{"peer": peer, "bytes": 64 * MIB, "seconds": seconds}
            for peer, seconds in (("ringar_in_place", 1e-2), ("memcpy", 2e-2))]  # fmt: skip
    results.record("allreduce-2-ranks", MACHINE, {"tried": {}, "rows": rows, "missing": {}})
    assert targets.main([]) == 0
    printed = capsys.readouterr().out
    assert "# Maker(R) Processor 9.5 GHz, 2 cores" in printed
    assert "| allreduce 64 MiB in place, of a memcpy" in printed
    assert "0.5x" in printed


@pytest.fixture
def page_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a documentation with empty marks, and a machine that was measured."""
    rows = [{"peer": "ringar_engine", "bytes": 4 * KIB, "seconds": 1e-6, "min": 9e-7, "max": 2e-6},
            {"peer": "openmpi", "bytes": 4 * KIB, "seconds": 3e-6},
            {"peer": "intelmpi", "bytes": 4 * KIB, "seconds": 2e-6}]  # fmt: skip
    results.record("allreduce-2-ranks", MACHINE, {"tried": {}, "rows": rows, "missing": {}})
    (tmp_path / "performance").mkdir()
    for name, path in (("README", "README.md"), ("PAGE", "performance.md")):
        page = tmp_path / path
        page.write_text(f"before\n{performance.BEGIN.format('all')}\nold\n{performance.END}\nafter")
        monkeypatch.setattr(performance, name, page)
    monkeypatch.setattr(performance, "FOLDER", tmp_path / "performance")
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    return tmp_path


def test_pages_have_the_tables_of_every_kind(page_folder: Path) -> None:
    assert performance.main(["--check"]) == 1
    assert performance.main([]) == 0
    assert performance.main(["--check"]) == 0
    cells = "**1 us** (0.9 us to 2 us); Open MPI 3 us"
    row = f"2 cores](docs/performance/maker-9.5-ghz-2-cores.md) | {cells}"
    readme = (page_folder / "README.md").read_text()
    assert row in readme
    assert readme.startswith("before\n")
    assert readme.endswith("\nafter")
    assert "old" not in readme
    assert row.replace("docs/", "") in (page_folder / "performance.md").read_text()
    page = (page_folder / "performance" / "maker-9.5-ghz-2-cores.md").read_text()
    assert page.startswith("# Maker(R) Processor 9.5 GHz, 2 cores\n")
    assert "2026-01-02, commit c, TensorFlow 2.21.0" in page
    assert "| 4 KiB" in page


def test_words_around_the_tables_stay(page_folder: Path) -> None:
    assert performance.main([]) == 0
    page = page_folder / "performance" / "maker-9.5-ghz-2-cores.md"
    page.write_text(page.read_text().replace("1 us", "7 us") + "What bounds it.\n")
    assert performance.main(["--check"]) == 1
    assert performance.main([]) == 0
    assert "7 us" not in page.read_text()
    assert page.read_text().endswith("What bounds it.\n")


def test_marks_without_figures_are_named(
    page_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = page_folder / "performance" / "other-4-cores.md"
    page.write_text(f"{performance.BEGIN.format('other-4-cores')}\n{performance.END}\n")
    assert performance.main([]) == 1
    error = capsys.readouterr().err
    assert "performance/other-4-cores.md: expected" in error
    assert "received marks for other-4-cores" in error


def test_recorded_files_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = machine.ROOT / "benchmarks" / "results"
    monkeypatch.setattr(results, "FOLDER", folder)
    for path in folder.glob("*.json"):
        kind = json.loads(path.read_text())
        assert path.stem == results.name_of(kind["cpu"], kind["cores"])
        assert targets.table_text(kind)
