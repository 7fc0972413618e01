"""The search for threads: what it tries, and what it says of the best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.series import Series
from benchmarks.training import plot, threads


def table(seconds: dict[threads.Setting, list[float]]) -> list[dict[str, Any]]:
    series = {setting: Series([[t] for t in times]) for setting, times in seconds.items()}
    return threads.rows(series, 32, 2)


def test_zero_and_the_default_are_among_the_settings() -> None:
    for ranks, cores in ((1, 2), (2, 2), (4, 2), (2, 8), (3, 8)):
        combinations = threads.settings(ranks, cores)
        assert threads.default(ranks, cores)[2] in {binding for *_, binding in combinations}
        assert len(set(combinations)) == len(combinations)
        assert (0, 0, "none") in combinations
    assert threads.default(2, 2) == (1, 2, "core")
    assert threads.default(2, 8) == (4, 4, "core")
    assert threads.default(4, 2) == (1, 2, "none")


def test_verdict_tells_noise_from_a_gain() -> None:
    usual = (1, 2, "core")
    same = table({usual: [1.0, 1.1], (2, 1, "none"): [1.2, 1.3]})
    assert "without any option." in threads.verdict(same, usual, 2)
    noise = table({usual: [1.0, 1.2], (2, 1, "none"): [0.9, 1.1]})
    assert "no more than the rounds differ" in threads.verdict(noise, usual, 2)
    clear = threads.verdict(table({usual: [1.0, 1.2], (0, 0, "none"): [0.5, 0.6]}), usual, 2)
    assert "50.0% slower: more than" in clear
    assert "RINGAR_INTRA_OP_THREADS=0 RINGAR_INTER_OP_THREADS=0 ringarrun -np 2" in clear


@pytest.mark.slow
def test_picture(tmp_path: Path) -> None:
    seconds = {setting: [1.0, 1.1, 1.3] for setting in threads.settings(2, 2)}
    plot.plot_threads(str(tmp_path / "threads"), table(seconds), "a title")
    assert (tmp_path / "threads.png").read_bytes().startswith(b"\x89PNG")
