"""Markers that select where and when a test runs.

ranks(n, ...)  only with these numbers of ranks (1 is plain pytest)
job            starts jobs of its own: only in plain pytest, never under ringarrun
slow           only with --slow: `make test-long`
alone          measures, and so runs while no other test runs
every_variant  runs, and all variants run, on every number of ranks
deadline(s)    seconds after which the test counts as hung (see deadline.py)

A test runs on one rank. In tests/collectives it runs on 2, too, and by its name on 3 or 4; one of
models by its name on one number above 1: on 2 three times as many as on 3 and on 4. Of these tests
of models every second one runs on one rank, too, and those whose marker `ranks` names 1. A variant
of a test that runs on several numbers of ranks runs on one of those above 1. Every second one runs
on one rank, too, but of models every fourth unless its marker `ranks` names 1. On the other numbers
they are slow.
"""

from __future__ import annotations

import collections
import zlib

import pytest

from tests.plugin.deadline import deadline_of
from tests.plugin.place import SIZE

#: The numbers of ranks that tests, or the variants of one, take in turn.
SIZES = (3, 2, 4, 2, 2)
#: Those of tests that all run on 2 ranks, too.
LARGE = (3, 4)

#: Where the tests are that run on one number of ranks above 1: models, and stand-ins for GPUs, both
#: of which take long.
MODELS = (
    "tests/asynchronous/",
    "tests/cupy/collectives/",
    "tests/horovod/",
    "tests/keras/",
    "tests/parallel/",
    "tests/research/",
)
#: Where the tests are that run on several ranks (RANK_TESTS in the Makefile).
RANK_TESTS = (*MODELS, "tests/collectives/")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, too")


def pytest_configure(config: pytest.Config) -> None:
    for marker in (
        "ranks(*sizes): run only with these numbers of ranks",
        "job: starts jobs of its own, so it runs in plain pytest only",
        "slow: runs only with --slow",
        "alone: runs while no other test does",
        "every_variant: all variants run on every number of ranks",
        "deadline(seconds): the time after which this test counts as hung (default 120)",
    ):
        config.addinivalue_line("markers", marker)


# Before pytest's own hook, which handles `-m slow`.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _mark_rare_variants(items)
    slow = config.getoption("--slow")
    selected = [item for item in items if _runs_here(item, slow)]
    selection = set(selected)
    dropped = [item for item in items if item not in selection]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = selected
    if SIZE == 1:
        _put_long_files_first(items)


def _put_long_files_first(items: list[pytest.Item]) -> None:
    """Order files by their longest deadline, then by their number of tests.

    Several files run at once, each in one process: a long one at the end would run alone.
    """
    weights: dict[str, tuple[float, int]] = {}
    for item in items:
        longest, count = weights.get(str(item.path), (0.0, 0))
        weights[str(item.path)] = max(longest, deadline_of(item)), count + 1
    items.sort(key=lambda item: weights[str(item.path)], reverse=True)


def _mark_rare_variants(items: list[pytest.Item]) -> None:
    """Mark the tests and variants that run on another number of ranks as slow."""

    def test_of(item: pytest.Item) -> str:
        return item.nodeid.partition("[")[0]

    fast = [item for item in items if item.get_closest_marker("slow") is None]
    variants = collections.Counter(map(test_of, fast))
    number: collections.Counter[str] = collections.Counter()
    for item in fast:
        test = test_of(item)
        if variants[test] == 1:
            runs = _runs_test(item, zlib.crc32(test.encode()))
        else:
            runs = _runs_variant(item, number[test])
            number[test] += 1
        if not runs and not item.get_closest_marker("every_variant"):
            item.add_marker(pytest.mark.slow)


def _runs_test(item: pytest.Item, index: int) -> bool:
    """Return whether a test without variants runs on this number of ranks."""
    if not item.nodeid.startswith(MODELS):
        return SIZE not in LARGE or _has_turn(item, index, LARGE)
    if SIZE == 1:
        half = index // len(SIZES) % 2 == 0  # of those of each turn
        return half or _names_one(item) or not _is_for_ranks(item)
    return _has_turn(item, index, SIZES)


def _runs_variant(item: pytest.Item, index: int) -> bool:
    """Return whether the variant with this index runs on this number of ranks."""
    if SIZE > 1:
        return _has_turn(item, index, SIZES)
    rare = 4 if item.nodeid.startswith(MODELS) and not _names_one(item) else 2
    return index % rare == 0 or not _is_for_ranks(item)


def _is_for_ranks(item: pytest.Item) -> bool:
    """Return whether an item may run on several ranks that `make test-ranks` starts."""
    if item.get_closest_marker("job") or not item.nodeid.startswith(RANK_TESTS):
        return False
    return bool(_sizes(item, SIZES))


def _names_one(item: pytest.Item) -> bool:
    ranks = item.get_closest_marker("ranks")
    return ranks is not None and 1 in ranks.args


def _has_turn(item: pytest.Item, index: int, turns: tuple[int, ...]) -> bool:
    """Return whether this number of ranks is the one for `index` among those that may be."""
    sizes = _sizes(item, turns)
    return not sizes or sizes[index % len(sizes)] == SIZE


def _sizes(item: pytest.Item, numbers: tuple[int, ...]) -> list[int]:
    """Return those of these numbers of ranks on which an item may run."""
    ranks = item.get_closest_marker("ranks")
    return [n for n in numbers if ranks is None or n in ranks.args]


def _runs_here(item: pytest.Item, slow: bool) -> bool:
    ranks = item.get_closest_marker("ranks")
    if ranks is not None and SIZE not in ranks.args:
        return False
    if SIZE > 1 and item.get_closest_marker("job"):
        return False
    return slow or item.get_closest_marker("slow") is None
