"""The scan over ranks, each of which has reduced its shard of a chain to one part.

Recursive doubling (Hillis and Steele, "Data parallel algorithms", 1986): in round j, a rank sends
its accumulated part to the rank at distance 2^j after it, and prepends the part that it receives
from distance 2^j before it. After ceil(log2(P)) rounds the last received part includes the
beginning of the chain, with the vector. Applying the earlier received parts to it gives the vector
that enters this rank's shard, without a product of two matrices.
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
    """Hold a shard of a chain as one map, or the vector behind it."""

    def then(self: P, after: P) -> P:
        """Return the composition of two parts: this one first."""

    def tensors(self) -> list[Any]:
        """Return the tensors to send."""


@dataclasses.dataclass(frozen=True)
class Line:
    """Order ranks as a chain, with indices 0 ... size - 1.

    Attributes:
        ranks: the process set.
        size: the number of ranks that have a shard; the first ones.
        reverse: whether the chain begins at the last of them.
    """

    ranks: ProcessSet
    size: int
    reverse: bool

    @property
    def index(self) -> int:
        """This rank's index; meaningless if the rank has no shard."""
        return self.rank_at(self.ranks.rank())  # the mapping is its own inverse

    def rank_at(self, index: int) -> int:
        """Return the rank in the process set with an index."""
        return self.size - 1 - index if self.reverse else index


def before(
    part: P | None, line: Line, receive: Callable[[range, int, str], P], name: str
) -> P | None:
    """Return the exclusive scan over the parts of all ranks.

    Args:
        part: the part of this rank. At the first index it is a vector; at the last index it is not
            used, and may be None.
        line: the ranks, in the order of the chain.
        receive: `receive(indices, source, name)` receives the composed part of the ranks with these
            indices. It is a vector if they begin with 0.
        name: the name of the messages.

    Returns:
        The vector that enters this rank's shard; None at the first index.
    """
    index, received, distance = line.index, [], 1
    while distance < line.size:
        label = f"{name}/{distance}"
        if index + distance < line.size:
            assert part is not None
            to = line.rank_at(index + distance)
            send(part.tensors(), to, name=label, process_set=line.ranks)
        if index >= distance:
            indices = range(max(index - 2 * distance + 1, 0), index - distance + 1)
            received.append(receive(indices, line.rank_at(index - distance), label))
            if part is not None and index + 2 * distance < line.size:  # it will be sent again
                part = received[-1].then(part)
        distance *= 2
    if not received:
        return None
    return functools.reduce(lambda vector, element: vector.then(element), reversed(received))
