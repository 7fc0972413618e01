"""The benchmarks of docs/papers.md: those that `make papers` runs are there, and exist."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from benchmarks import papers
from benchmarks.harness import results
from tests.plugin.jobs import ROOT

PAGE = (ROOT / "docs" / "papers.md").read_text()


def test_commands_of_the_page_exist() -> None:
    modules = set(re.findall(r"python -m (benchmarks[\w.]*)", PAGE))
    assert modules
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    assert not missing


def test_the_page_has_the_commands_of_make_papers() -> None:
    modules = {line.split()[0] for line in papers.COMMANDS.values()}
    missing = [module for module in modules if f"`python -m {module}" not in PAGE]
    assert not missing


def test_all_commands_end_within_an_hour() -> None:
    assert papers.LIMIT * len(papers.COMMANDS) <= 3600


def test_figures_go_to_the_folder_of_papers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stand-in for a benchmark records a run, and leaves benchmarks/results/ as it is."""
    (tmp_path / "standin_of_papers.py").write_text(
        "import sys\n"
        "from benchmarks.harness import machine, results\n"
        "data = {'tried': {}, 'rows': [{'words': sys.argv[1:]}]}\n"
        "results.record('standin', machine.describe(), data)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(papers, "COMMANDS", {"standin": "standin_of_papers --rounds 1"})
    monkeypatch.setattr(papers, "FOLDER", tmp_path / "papers")
    monkeypatch.setattr(results, "FOLDER", results.FOLDER)
    monkeypatch.setattr("sys.argv", [])
    papers.run_here("standin")
    (file,) = (tmp_path / "papers").glob("*.json")
    assert json.loads(file.read_text())["runs"]["standin"]["rows"] == [{"words": ["--rounds", "1"]}]


def test_faults_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(papers, "COMMANDS", {"absent": "benchmarks.absent"})
    monkeypatch.setattr(papers, "run_command", fails)
    assert papers.main([]) == 1
    output = capsys.readouterr().out
    assert "the words of the job" in output
    assert "absent: no end after 300 s" in output


def fails(command: list[str], *, deadline: float) -> str:
    raise papers.JobFailedError(f"no end after {deadline:.0f} s", "the words of the job")
