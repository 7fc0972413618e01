"""Variables that the ranks must have in common: compared by digests, and broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from ringar.collectives import broadcast_variables
from ringar.collectives.digest import digest
from ringar.keras.share import optimizers_of
from ringar.keras.zero.weight_slice import is_sharded
from ringar.sharding import slots
from ringar.sharding.cut import Cut, cut_of

if TYPE_CHECKING:
    from ringar.job.process_sets import ProcessSet


def listing(names: Sequence[str], separator: str = ", ") -> str:
    """Return the first five names, and how many more there are."""
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return separator.join(names[:5]) + rest


@dataclass(frozen=True)
class State:
    """Hold variables, `keras.Variable` or `tf.Variable`, with how each of them is cut."""

    variables: list[Any]
    cuts: list[Cut | None]

    @classmethod
    def of(cls, variables: Sequence[Any]) -> State:
        """Return the state of variables of models."""
        common = [v for v in variables if not is_sharded(v)]  # each rank has a slice of its own
        return cls(common, [cut_of(variable) for variable in common])

    @classmethod
    def of_optimizer(cls, optimizer: keras.optimizers.Optimizer) -> State:
        """Return the state of an optimizer as far as it is built."""
        entries = zip(optimizer.variables, slots.cuts(optimizer), strict=True)
        pairs = zip(entries, slots.slices(optimizer), strict=True)
        # No other rank has the slots of a slice.
        common = [pair for pair, slot_slice in pairs if slot_slice is None]
        return cls([variable for variable, _ in common], [cut for _, cut in common])

    @classmethod
    def of_model(cls, model: keras.Model) -> State:
        """Return the weights of a model and the state of its optimizers, without seeds."""
        # model.variables has the seeds, too, which must differ between ranks for dropout.
        state = cls.of(model.weights)
        for optimizer in optimizers_of(model):
            state += cls.of_optimizer(optimizer)
        return state

    def __add__(self, other: State) -> State:
        """Return the variables of both states."""
        return State(self.variables + other.variables, self.cuts + other.cuts)

    def without(self, is_left_out: Callable[[Any], bool]) -> State:
        """Return the state of the other variables."""
        pairs = zip(self.variables, self.cuts, strict=True)
        rest = [pair for pair in pairs if not is_left_out(pair[0])]
        return State([variable for variable, _ in rest], [cut for _, cut in rest])

    @property
    def names(self) -> str:
        """The first five names, and how many more there are."""
        return listing([getattr(variable, "path", variable.name) for variable in self.variables])

    def digests(self) -> list[int]:
        """Return a digest of each variable on this rank."""
        return [digest([_comparable(variable)]) for variable in self.variables]

    def that_differ(self, of_ranks: Sequence[Sequence[int]]) -> State:
        """Return the variables that ranks have different values of, given all ranks' digests."""
        pairs = zip(self.variables, self.cuts, strict=True)
        places = [
            (variable, cut)
            for (variable, cut), digests in zip(pairs, zip(*of_ranks, strict=True), strict=True)
            if not _is_same(cut, digests)
        ]
        return State([variable for variable, _ in places], [cut for _, cut in places])

    def broadcast(self, root_rank: int, process_set: ProcessSet | None = None) -> None:
        """Give all ranks the values of `root_rank`, in place.

        Each part of a cut variable is broadcast from the rank of that part in the model group of
        `root_rank`.
        """
        shared = [v for v, cut in zip(self.variables, self.cuts, strict=True) if cut is None]
        if shared:
            broadcast_variables(shared, root_rank, process_set=process_set)
        parts = [v for v, cut in zip(self.variables, self.cuts, strict=True) if cut is not None]
        if parts:
            grid = next(cut.grid for cut in self.cuts if cut is not None)
            root = root_rank // grid.model * grid.model + grid.part
            broadcast_variables(parts, root, process_set=grid.data_set)


def _comparable(variable: Any) -> np.ndarray:
    """Return the value with one NaN for all: their bits may differ, and mean nothing."""
    value = np.asarray(keras.ops.convert_to_numpy(variable))
    floating = np.issubdtype(value.dtype, np.floating)
    return np.where(np.isnan(value), np.nan, value).astype(value.dtype) if floating else value


def _is_same(cut: Cut | None, digests: Sequence[int]) -> bool:
    """Return whether all ranks with the same part of a variable have the same digest."""
    parts = 1 if cut is None else cut.grid.model
    return all(digest == digests[rank % parts] for rank, digest in enumerate(digests))
