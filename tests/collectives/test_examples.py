"""The examples in the docstrings of collectives, process sets and data print what they show."""

from __future__ import annotations

import doctest
import operator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ringar

pytestmark = pytest.mark.ranks(2)

NAMES = [
    "allreduce",
    "grouped_allreduce",
    "reducescatter",
    "grouped_reducescatter",
    "allgather",
    "grouped_allgather",
    "broadcast",
    "grouped_broadcast",
    "alltoall",
    "barrier",
    "broadcast_variables",
    "broadcast_object",
    "allgather_object",
    "empty",
    "send",
    "ProcessSet",
    "add_process_set",
    "remove_process_set",
    "data.adapt",
    "data.shard",
]


class Runner(doctest.DocTestRunner):
    """Keeps failures: other output only on rank 0, whose output the docstrings show."""

    def __init__(self, rank: int) -> None:
        super().__init__(verbose=False)
        self.rank, self.differences = rank, list[str]()

    def report_failure(self, out: Any, test: Any, example: Any, got: str) -> None:
        if self.rank == 0:
            self.differences.append(f"{example.source}expected {example.want!r}, received {got!r}")

    def report_unexpected_exception(self, out: Any, test: Any, example: Any, exc_info: Any) -> None:
        self.differences.append(f"{example.source}raised {exc_info[1]!r}")


@pytest.mark.parametrize("name", NAMES)
def test_example(
    name: str, rank: int, shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shared_tmp_path)
    docstring = operator.attrgetter(name)(ringar).__doc__
    namespace = {"keras": keras, "np": np, "ringar": ringar, "tf": tf}
    example = doctest.DocTestParser().get_doctest(docstring, namespace, name, None, 0)
    assert example.examples, f"expected an example in the docstring of ringar.{name}"
    runner = Runner(rank)
    runner.run(example)
    assert not runner.differences
