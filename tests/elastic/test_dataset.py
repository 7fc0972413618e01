"""`ringar.elastic.Dataset`: each row once in an epoch, however many ranks there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ringar
from ringar.job import place

pytestmark = pytest.mark.ranks(1)


def deal(data: ringar.elastic.Dataset[Any], size: int, patch: pytest.MonkeyPatch) -> list[Any]:
    """The batches of each of `size` ranks."""
    patch.setattr(place, "size", lambda: size)
    batches = []
    for rank in range(size):
        patch.setattr(place, "rank", lambda rank=rank: rank)
        batches.append([data[index].tolist() for index in range(len(data))])
    return batches


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_row_is_dealt_once_by_worlds_of_different_sizes(
    shuffle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ringar.elastic.Dataset(np.arange(61), batch_size=3, shuffle=shuffle, seed=5)
    rows: list[int] = []
    orders = []
    for epoch in range(2):
        rows.clear()
        done = 0
        for size, batches in ((4, 2), (1, 3), (3, None)):
            data.go_to(epoch, done)
            ranks = deal(data, size, monkeypatch)
            rows += [row for dealing in ranks for batch in dealing[:batches] for row in batch]
            done = data.done_after(len(ranks[0]) if batches is None else batches)
        assert done == 61
        assert sorted(rows) == list(range(61))
        orders.append(list(rows))
    assert (orders[0] == orders[1]) != shuffle


def test_the_first_batches_of_all_ranks_are_the_first_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = ringar.elastic.Dataset(np.arange(14), batch_size=2)
    assert deal(data, 3, monkeypatch) == [
        [[0, 3], [6, 9], [12]],
        [[1, 4], [7, 10], [13]],
        [[2, 5], [8, 11]],
    ]
