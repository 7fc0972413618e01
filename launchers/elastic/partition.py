"""Which hosts go on together when some cannot reach each other: plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def left_out(ranks: Mapping[int, int], cut: Iterable[tuple[int, int]]) -> set[int]:
    """Return the hosts to leave out so that all others reach each other: few, and of few ranks.

    The host that most others cannot reach goes first; of two alike, that of fewer ranks, and then
    the one that comes later.

    Args:
        ranks: the number of ranks of each host, in order.
        cut: pairs of hosts of which one could not reach the other.
    """
    pairs = {frozenset(pair) for pair in cut if set(pair) <= ranks.keys()}
    order = list(ranks)
    out: set[int] = set()
    while pairs:
        counts = {host: sum(host in pair for pair in pairs) for host in order}
        worst = max(order, key=lambda host: (counts[host], -ranks[host], order.index(host)))
        out.add(worst)
        pairs = {pair for pair in pairs if worst not in pair}
    return out
