"""What the ranks of a pipeline agree on before they train: the grid, the cuts, the synthesizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from ringar.collectives.agree import first, same, together
from ringar.job import place
from ringar.parallel.pipeline import balance, cut
from ringar.parallel.pipeline.decoupling import Decoupling, Synthesizers
from ringar.parallel.pipeline.schedule import SYNTHETIC
from ringar.sharding import grid as grids
from ringar.sharding.grid import Grid


def check_arguments(model: keras.Model, **arguments: Any) -> None:
    """Compare models and arguments, on which the messages depend. Collective over all ranks.

    Raises:
        ValueError: on every rank, if they differ.
    """
    layers = {f"layer {number} of `model`": its for number, its in enumerate(cut.describe(model))}
    same(
        {f"`{name}`": repr(value) for name, value in arguments.items()} | layers,
        caller="ringar.parallel.Pipelined",
        remedy="Build the same pipeline, of the same model, on all ranks. Give layers names if "
        "ranks have made different numbers of layers before.",
    )


def grid_for(grid: Grid | None, modules: int | None) -> Grid:
    """Return the grid of the modules: the user's, the current or a new one."""
    found = grids.resolve(grid, "Pipelined") if grid is not None else grids.current()
    if grid is None and (found is None or modules not in (None, found.model)):
        return Grid(model=place.size() if modules is None else modules)
    assert found is not None
    if modules not in (None, found.model):
        raise ValueError(
            "`modules` must be the number of parts of the grid. "
            f"Received: modules={modules}, grid={found}"
        )
    return found


def places_for(
    graph: cut.Graph, grid: Grid, cuts: Sequence[str] | None, batch_size: int
) -> list[int]:
    """Return the positions of the user's cuts, or of balanced ones. Collective over all ranks."""
    if grid.model == 1 or cuts is not None:
        return cut.places(graph, list(cuts or []), grid.model)

    def timed() -> list[int]:
        seconds = balance.seconds_per_node(graph, batch_size)
        return balance.partition(graph, seconds, grid.model)

    return first(timed, caller="ringar.parallel.Pipelined", deed="to time the layers")


def synthesizers_for(
    schedule: str, plan: Decoupling, graph: cut.Graph, network: cut.Network, grid: Grid
) -> Synthesizers | None:
    """Return the synthesizers of this module; None for other schedules. Collective.

    Raises:
        ValueError: on every rank, if an argument or a synthesizer of one does not fit.
    """
    if schedule != SYNTHETIC:
        plan.refuse_if_given(schedule)
        return None
    made: list[Synthesizers] = []

    def make() -> int:  # a user's function may fail for the cut of one module only
        made.append(Synthesizers(plan, graph, network, grid.part, grid.model))
        return int(np.random.randint(2**31))

    deed = "to make its synthesizers"
    made[0].seed, *_ = together(make, caller="ringar.parallel.Pipelined", deed=deed)
    return made[0]
