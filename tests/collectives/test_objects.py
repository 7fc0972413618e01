"""Objects between ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ringar

OBJECTS: list[Any] = [
    None,
    0,
    "a text, ä ö ü",
    {"epoch": 3, "rates": [0.1, 0.01], "nested": {"none": None}},
    (1, 2.5, b"bytes"),
    np.arange(12).reshape(3, 4),
    b"x" * 1_000_000,
]


def same(obj: Any, other: Any) -> bool:
    if isinstance(obj, np.ndarray):
        return obj.dtype == other.dtype and np.array_equal(obj, other)
    return type(obj) is type(other) and bool(obj == other)


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda obj: type(obj).__name__)
def test_broadcast(obj: Any) -> None:
    for root in range(ringar.size()):
        argument = obj if ringar.rank() == root else f"ignored on rank {ringar.rank()}"
        received = ringar.broadcast_object(argument, root)
        assert same(received, obj)
        if ringar.rank() == root:
            assert received is obj


def test_broadcast_ignores_what_other_ranks_bring() -> None:
    argument: Any = "picklable" if ringar.rank() == 0 else lambda: "not picklable"
    assert ringar.broadcast_object(argument) == "picklable"


def test_allgather() -> None:
    entry: dict[str, Any] = {"rank": ringar.rank(), "data": list(range(ringar.rank() * 10_000))}
    everyone = ringar.allgather_object(entry)
    assert [entry["rank"] for entry in everyone] == list(range(ringar.size()))
    assert [len(entry["data"]) for entry in everyone] == [r * 10_000 for r in range(ringar.size())]


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda obj: type(obj).__name__)
def test_allgather_of_every_kind(obj: Any) -> None:
    everyone = ringar.allgather_object(obj)
    assert len(everyone) == ringar.size()
    assert all(same(result, obj) for result in everyone)


@pytest.mark.ranks(3, 4)
def test_among_some_ranks() -> None:
    members = ringar.add_process_set([2, 0])
    if members.included():
        assert ringar.allgather_object(ringar.rank(), process_set=members) == [2, 0]
        argument = "the last" if ringar.rank() == 2 else None
        assert ringar.broadcast_object(argument, 2, process_set=members) == "the last"
    ringar.remove_process_set(members)
