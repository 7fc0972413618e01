"""The route of the backward pass: the Jacobians to multiply, and each rank's share of them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ringar.parallel.scan.doubling import Line

if TYPE_CHECKING:
    from ringar.parallel.scan.stages import Chain, Stage


@dataclasses.dataclass(frozen=True)
class Route:
    """Hold the route from the loss back to the first weights.

    Positions are counted between the Jacobians: at position i, dl/dh has been multiplied by i of
    them.

    Attributes:
        numbers: the numbers of the stages whose Jacobians are multiplied, from the loss back.
        weight_positions: the position of the outputs of each stage with trainable weights, by the
            stage's number.
    """

    numbers: list[int]
    weight_positions: dict[int, int]

    @classmethod
    def of(cls, chain: Chain) -> Route:
        """Return the route through a chain."""
        stages = chain.stages
        trained = [number for number, stage in enumerate(stages) if _is_trained(stage)]
        # Stages before the first one with weights need no gradient.
        numbers = [
            number for number in reversed(range(min(trained, default=len(stages)) + 1, len(stages)))
            if not stages[number].is_identity
        ]  # fmt: skip
        return cls(
            numbers, {number: sum(later > number for later in numbers) for number in trained}
        )

    @property
    def positions(self) -> int:
        """The number of positions."""
        return len(self.numbers) + 1

    def share(self, line: Line) -> range:
        """Return the positions of this rank, which has the Jacobian after each of them.

        The numbers of positions differ by at most 1 between ranks. The cost of a product depends on
        the sparsity of earlier products, which is not known in advance.
        """
        if line.ranks.rank() >= line.size:
            return range(0)
        cuts = [i * self.positions // line.size for i in (line.index, line.index + 1)]
        return range(*cuts)


@dataclasses.dataclass(frozen=True)
class Share:
    """Hold one rank's share of a route.

    Attributes:
        positions: the positions of this rank; empty if there are more ranks than positions.
        count: the number of all positions.
        line: the ranks with positions, in the order of the backward pass; None if there is one
            rank only.
    """

    positions: range
    count: int
    line: Line | None = None

    @property
    def is_shared(self) -> bool:
        """Whether there are other ranks."""
        return self.line is not None

    @property
    def is_first(self) -> bool:
        """Whether the share begins with the gradient of the loss."""
        return len(self.positions) > 0 and self.positions.start == 0

    @property
    def has_successor(self) -> bool:
        """Whether another rank continues the backward pass."""
        return 0 < self.positions.stop < self.count


def _is_trained(stage: Stage) -> bool:
    return stage.kind in ("dense", "convolution") and bool(stage.layer.trainable_weights)
