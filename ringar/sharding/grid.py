"""Grids of ranks: D model groups of M ranks. A group holds one model, each rank a part of it.

Rank r is part `r % M` of model group `r // M`. The ranks of a group exchange activations in the
middle of every step, so they are neighbors, on one host if it has room for them:

                 part 0    part 1
    group 0      rank 0    rank 1     a model set: one whole model, the same examples
    group 1      rank 2    rank 3     a model set

                data set  data set    the same part of the model, different examples

The gradient of a variable that is cut over the parts is reduced over its data set alone, that of a
whole variable over all ranks.
"""

from __future__ import annotations

from typing import Any, TypeVar

from ringar.collectives import broadcast_object
from ringar.errors import UnsupportedError
from ringar.job import membership, place, process_sets
from ringar.job.process_sets import ProcessSet, add_process_set, remove_process_set

Value = TypeVar("Value")


class Grid:
    """Arrange the ranks of the job as `data` x `model`. Collective: every rank makes the same grid.

    The last grid is the current one. Layers of `ringar.layers` use it unless they are given
    another.

    Args:
        data: the number of model groups, which get different examples; None: as many as fit.
        model: the number of ranks over which each model is split. A pair (rows, columns) lays
            these ranks out as tiles of a plane, row by row, for the partitioned layers; a number
            stands for so many strips of rows.

    Attributes:
        data: the number of model groups.
        model: the number of parts.
        tiles: the rows and columns in which the parts lie, if planes are cut; (model, 1) for
            strips.
        group: this rank's model group, from 0.
        part: this rank's part, from 0.
        model_set: the ranks of this rank's model group, by their parts.
        data_set: the ranks that hold this rank's part, by their groups.

    Raises:
        NotInitializedError: before `ringar.init()`.
        ValueError: if `data` x `model` is not the number of ranks.

    Example:
    ```python
    grid = ringar.parallel.Grid(model=2)
    optimizer = ringar.DistributedOptimizer("adam", grid=grid)
    share = ringar.data.shard(dataset, grid=grid)
    ```
    """

    def __init__(self, data: int | None = None, model: int | tuple[int, int] = 1) -> None:
        size = place.size()
        self.tiles = _tiles(model)
        model = self.tiles[0] * self.tiles[1]
        if membership.is_elastic():
            raise UnsupportedError(
                f"rank {place.rank()} | Grid: expected a job with fixed ranks, since each has "
                "parts of the model; received an elastic job. Leave out --min-np."
            )
        if data is None and size % model == 0:
            data = size // model
        if data is not None:
            _check_count("data", data)
        if data is None or data * model != size:
            raise ValueError(
                "`data` x `model` must be the number of ranks. "
                f"Received: data={data}, model={model} in a job of {size} ranks. "
                f"Start {(data or 1) * model} ranks (ringarrun -np {(data or 1) * model}), or "
                "choose a grid that fills the job."
            )
        self.data, self.model = data, model
        self.group, self.part = divmod(place.rank(), model)
        model_sets = [_add([d * model + m for m in range(model)]) for d in range(data)]
        data_sets = [_add([d * model + m for d in range(data)]) for m in range(model)]
        self._sets = [*model_sets, *data_sets]
        self.model_set, self.data_set = model_sets[self.group], data_sets[self.part]
        global _current
        _current = self

    @property
    def is_open(self) -> bool:
        """Whether the grid can still be used, before `close` and `ringar.shutdown`."""
        return None not in (self.model_set.process_set_id, self.data_set.process_set_id)

    def close(self) -> None:
        """Remove the process sets of the grid. Collective over all ranks."""
        for process_set in self._sets:
            if process_set.process_set_id:  # not the set of all ranks
                remove_process_set(process_set)
        if self.model_set is process_sets.global_process_set:
            self.model_set = ProcessSet(self.model_set.ranks)

    def agree(self, value: Value | None) -> Value:
        """Return rank 0's `value`, such as a seed. Collective over all ranks."""
        agreed: Any = value if place.size() == 1 else broadcast_object(value, name="grid/agree")
        return agreed

    def share(self, count: int, what: str) -> int:
        """Return the number of kernels or units of each part, out of `count`.

        Raises:
            ValueError: if `count` is not divisible by the number of parts.
        """
        if count % self.model:
            raise ValueError(
                f"`{what}` must be divisible by the number of parts. "
                f"Received: {what}={count}, model={self.model}"
            )
        return count // self.model

    def __repr__(self) -> str:
        model = self.model if self.tiles[1] == 1 else self.tiles
        return f"Grid(data={self.data}, model={model})"


_current: Grid | None = None


def current() -> Grid | None:
    """Return the grid that was made last, if it is still open."""
    return _current if _current is not None and _current.is_open else None


def resolve(grid: Grid | None, caller: str) -> Grid:
    """Return `grid`, or the current one if it is None.

    Raises:
        ValueError: there is none, or it is closed.
    """
    resolved = grid or current()
    if resolved is None:
        raise ValueError(
            f"{caller} must be used in a grid. Received: none. Make one after ringar.init(): "
            "grid = ringar.parallel.Grid(model=2)"
        )
    if not resolved.is_open:
        raise ValueError(f"`grid` must be open. Received: {resolved}, which was closed.")
    return resolved


def _add(ranks: list[int]) -> ProcessSet:
    if len(ranks) == place.size():
        return process_sets.global_process_set
    return add_process_set(ranks)


def _tiles(model: int | tuple[int, int]) -> tuple[int, int]:
    """Return the rows and columns of parts."""
    if not isinstance(model, (tuple, list)):
        _check_count("model", model)
        return model, 1
    if len(model) != 2 or not all(isinstance(count, int) and count >= 1 for count in model):
        raise ValueError(
            "`model` must be a positive whole number, or two of them, rows and columns of tiles. "
            f"Received: model={model!r}"
        )
    return model[0], model[1]


def _check_count(name: str, count: object) -> None:
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"`{name}` must be a positive whole number. Received: {name}={count!r}")
