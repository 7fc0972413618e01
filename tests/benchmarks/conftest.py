"""What all tests of benchmarks need."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness import results


@pytest.fixture(autouse=True)
def results_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keeps the repository's results from runs of tests, and returns where those are recorded."""
    folder = tmp_path / "results"
    monkeypatch.setattr(results, "FOLDER", folder)
    return folder
