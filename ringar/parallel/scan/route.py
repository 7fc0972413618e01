"""The way back through a net: which Jacobians are multiplied, and which rank multiplies which."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ringar.parallel.scan.doubling import Line

if TYPE_CHECKING:
    from ringar.parallel.scan.stages import Chain, Stage


@dataclasses.dataclass(frozen=True)
class Route:
    """Hold the way from the loss to the first weights.

    There are positions between the Jacobians: at position i, dl/dh has come through i of them.

    Attributes:
        used: the numbers of the stages whose Jacobians are multiplied, from the loss back.
        wanted: by the number of each stage that has weights to train, the position of its outputs.
    """

    used: list[int]
    wanted: dict[int, int]

    @classmethod
    def of(cls, chain: Chain) -> Route:
        """Return the route through a chain."""
        stages = chain.stages
        trained = [number for number, stage in enumerate(stages) if _is_trained(stage)]
        # Stages before the first one with weights need no gradient.
        used = [
            number for number in reversed(range(min(trained, default=len(stages)) + 1, len(stages)))
            if not stages[number].is_identity
        ]  # fmt: skip
        return cls(used, {number: sum(other > number for other in used) for number in trained})

    @property
    def positions(self) -> int:
        """Count the positions."""
        return len(self.used) + 1

    def share(self, line: Line) -> range:
        """Return the positions of this rank, which has the Jacobian after each of them.

        All ranks get the same number, or one less. What a product costs depends on how full the
        others have made the matrices, which cannot be told before.
        """
        if line.ranks.rank() >= line.size:
            return range(0)
        cuts = [place * self.positions // line.size for place in (line.index, line.index + 1)]
        return range(*cuts)


@dataclasses.dataclass(frozen=True)
class Share:
    """Hold one rank's share of the way back.

    Attributes:
        positions: whose gradients it makes; none if there are more ranks than positions.
        count: of all positions.
        line: the ranks that have positions, in the order of the way back; None if there is one
            rank alone.
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
        """Whether it begins with the gradient of the loss."""
        return len(self.positions) > 0 and self.positions.start == 0

    @property
    def has_successor(self) -> bool:
        """Whether another rank goes on where it ends."""
        return 0 < self.positions.stop < self.count


def _is_trained(stage: Stage) -> bool:
    return stage.kind in ("dense", "convolution") and bool(stage.layer.trainable_weights)
