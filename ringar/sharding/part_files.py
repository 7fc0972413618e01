"""Files with the weights of one rank, some of them cut: the number of the part in the file.

Keras saves and loads the variables that a rank has. Those of another part have the same shape, and
would load without an error.
"""

from __future__ import annotations

from collections.abc import MutableMapping

import keras
import numpy as np

from ringar.sharding.cut import cut_of

_KEY = "part"


class SavesPart:
    """Save the number of the part beside the variables of a layer that is cut: a mixin."""

    name: str
    weights: list[keras.Variable]

    def save_own_variables(self, store: MutableMapping[str, np.ndarray]) -> None:
        """Save the variables and the part."""
        super().save_own_variables(store)  # type: ignore[misc]
        if self._part_and_parts != (0, 1):
            store[_KEY] = np.array(self._part_and_parts)

    def load_own_variables(self, store: MutableMapping[str, np.ndarray]) -> None:
        """Load the variables.

        Raises:
            ValueError: the file has the variables of another part.
        """
        part, names = self._part_and_parts, set(store.keys())
        saved = tuple(map(int, store[_KEY])) if _KEY in names else part
        if saved != part:
            raise ValueError(
                f"{type(self).__name__} {self.name} must get the weights of part {part[0]} of "
                f"{part[1]}, counted from 0, which this rank has. Received: a file with those of "
                f"part {saved[0]} of {saved[1]}. Save ringar.parallel.merge(model), which any "
                "number of ranks can cut again, or let each rank load the file that it has saved."
            )
        super().load_own_variables({name: store[name] for name in names - {_KEY}})  # type: ignore[misc]

    @property
    def _part_and_parts(self) -> tuple[int, int]:
        cuts = [cut for weight in self.weights if (cut := cut_of(weight)) is not None]
        return (cuts[0].grid.part, cuts[0].grid.model) if cuts else (0, 1)
