"""The scan over ranks, of whatever each of them has reduced its stretch of a chain to.

Recursive doubling (Hillis and Steele, "Data parallel algorithms", 1986): in round j, a rank sends
what it has put together so far to the rank 2^j places further on, and puts what comes from 2^j
places before in front of its own. After ceil(log2(P)) rounds the last part that a rank has received
reaches back to the beginning of the chain, where the vector is: applying the ones before it to that
gives what all ranks before it make of the vector, without a product of two matrices.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from ringar.collectives.send import send
from ringar.job.process_sets import ProcessSet

P = TypeVar("P", bound="Part")


class Part(Protocol):
    """Hold a stretch of a chain as one map, or the vector that has come through it."""

    def then(self: P, after: P) -> P:
        """Return the composition of this part, first, and another."""

    def tensors(self) -> list[Any]:
        """Return the tensors to send."""


@dataclasses.dataclass(frozen=True)
class Line:
    """Order ranks as a chain: their places are 0 ... size - 1.

    Attributes:
        ranks: the process set.
        size: how many of its ranks have a stretch; the first ones.
        reverse: whether the chain begins at the last one of them.
    """

    ranks: ProcessSet
    size: int
    reverse: bool

    @property
    def index(self) -> int:
        """Return this rank's place; of no meaning if it has none."""
        return self.rank_at(self.ranks.rank())  # which is its own inverse

    def rank_at(self, index: int) -> int:
        """Return the rank in the process set that has a place."""
        return self.size - 1 - index if self.reverse else index


def before(
    own: P | None, line: Line, receive: Callable[[range, int, str], P], name: str
) -> P | None:
    """Return the exclusive scan of one part of each rank.

    Args:
        own: of this rank; that of the first place has the vector in it. The last place's is not
            used, and may be None.
        line: the ranks.
        receive: `receive(places, source, name)` receives the part of these places, all the
            stretches as one. It is a vector if they begin with 0.
        name: of the messages.

    Returns:
        The vector as it comes into this rank's stretch; None at the first place.
    """
    index, received, distance = line.index, [], 1
    while distance < line.size:
        label = f"{name}/{distance}"
        if index + distance < line.size:
            assert own is not None
            to = line.rank_at(index + distance)
            send(own.tensors(), to, name=label, process_set=line.ranks)
        if index >= distance:
            indices = range(max(index - 2 * distance + 1, 0), index - distance + 1)
            received.append(receive(indices, line.rank_at(index - distance), label))
            if own is not None and index + 2 * distance < line.size:  # is sent once more
                own = received[-1].then(own)
        distance *= 2
    if not received:
        return None
    return functools.reduce(lambda vector, part: vector.then(part), reversed(received))
