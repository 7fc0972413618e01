"""The markers that say where a test runs.

ranks(n, ...)  only with these numbers of ranks (1 is plain pytest)
job            starts jobs of its own: only in plain pytest, never under ringarrun
slow           only with --slow

On 2 ranks half of the variants of a test with many parameters runs, and on more, which share the
cores, a third, other ones for each number of ranks; with --slow all of them.

every_variant  all of them in any case
deadline(s)    seconds after which the test counts as hung (see deadline.py)
"""

from __future__ import annotations

import collections

import pytest

from tests.plugin.place import SIZE

#: Of tests that have more variants than so many, several ranks run one of so many.
MANY = 6
PART = {1: 1, 2: 2}.get(SIZE, 3)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, too")


def pytest_configure(config: pytest.Config) -> None:
    for marker in (
        "ranks(*sizes): run only with these numbers of ranks",
        "job: starts jobs of its own, so it runs in plain pytest only",
        "slow: runs only with --slow",
        "every_variant: no part of the variants on many ranks, but all of them",
        "deadline(seconds): the time after which this test counts as hung (default 120)",
    ):
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = config.getoption("--slow")
    selected = [item for item in items if _runs_here(item, slow)]
    if PART > 1 and not slow:
        selected = _thinned(selected)
    kept = set(selected)
    dropped = [item for item in items if item not in kept]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = selected


def _thinned(items: list[pytest.Item]) -> list[pytest.Item]:
    """One in PART of the variants of tests that have many; other ones on other sizes."""

    def test_of(item: pytest.Item) -> str:
        return item.nodeid.partition("[")[0]

    variants = collections.Counter(map(test_of, items))
    number: collections.Counter[str] = collections.Counter()
    kept = []
    for item in items:
        test = test_of(item)
        number[test] += 1
        whole = variants[test] <= MANY or item.get_closest_marker("every_variant")
        if whole or (number[test] + SIZE) % PART == 0:
            kept.append(item)
    return kept


def _runs_here(item: pytest.Item, slow: bool) -> bool:
    ranks = item.get_closest_marker("ranks")
    if ranks is not None and SIZE not in ranks.args:
        return False
    if SIZE > 1 and item.get_closest_marker("job"):
        return False
    return slow or item.get_closest_marker("slow") is None
