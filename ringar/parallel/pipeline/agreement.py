"""The agreement of a pipeline's ranks before they train: grid, cuts and synthesizers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from ringar.collectives.agree import first, same, together
from ringar.job import place
from ringar.parallel.pipeline import balance, checks, cut
from ringar.parallel.pipeline.batch import Reader
from ringar.parallel.pipeline.decoupling import Decoupling, Synthesizers
from ringar.parallel.pipeline.schedule import SYNTHETIC, Schedule
from ringar.parallel.pipeline.schedule import schedule as schedule_named
from ringar.sharding import grid as grids
from ringar.sharding.grid import Grid


@dataclass(frozen=True)
class Layout:
    """Hold the agreement of a pipeline's ranks, and this rank's module.

    Attributes:
        grid: the grid of modules and replicas.
        schedule_name: the name of the schedule.
        schedule: the schedule of this rank's module.
        shrinking: multiplies the gradients that cross a cut.
        cuts: the names of the layers after which the model is cut.
        network: the network of this rank's module.
        synthesizers: those of this rank's module; None with a schedule that waits for gradients.
        reader: reads batches as the whole model takes them.
        output_names: the names of the outputs of the whole model.
    """

    grid: Grid
    schedule_name: str
    schedule: Schedule
    shrinking: float
    cuts: tuple[str, ...]
    network: cut.Network
    synthesizers: Synthesizers | None
    reader: Reader
    output_names: list[str]

    def __str__(self) -> str:
        return f"schedule={self.schedule_name!r}, {self.grid.model} modules"


def layout(
    model: keras.Model,
    plan: Decoupling,
    *,
    modules: int | None,
    grid: Grid | None,
    schedule: str,
    cuts: Sequence[str] | None,
    microbatches: int,
    shrinking: float,
    batch_size: int,
) -> Layout:
    """Check the arguments of a pipeline, and cut its model. Collective over all ranks."""
    check_arguments(
        model, modules=modules, grid=grid, schedule=schedule, cuts=cuts,
        microbatches=microbatches, shrinking=shrinking, **plan.describe(),
    )  # fmt: skip
    grid = grid_for(grid, modules)
    checks.check_options(microbatches, shrinking)
    actions = schedule_named(schedule, grid.part, grid.model, microbatches)
    graph = cut.Graph.of(model)
    if grid.model > 1:
        checks.check_dtypes(graph)
    places = places_for(graph, grid, cuts, batch_size)
    network = cut.network(graph, places, grid.part)
    return Layout(
        grid, schedule, actions, float(shrinking),
        tuple(graph.nodes[place - 1].operation.name for place in places),
        network, synthesizers_for(schedule, plan, graph, network, grid),
        Reader(graph.model), list(graph.model.output_names),
    )  # fmt: skip


def check_arguments(model: keras.Model, **arguments: Any) -> None:
    """Compare models and arguments, on which the messages depend. Collective over all ranks.

    Raises:
        ValueError: on every rank, if they differ.
    """
    texts = enumerate(cut.describe(model))
    layers = {f"layer {number} of `model`": text for number, text in texts}
    same(
        {f"`{name}`": repr(value) for name, value in arguments.items()} | layers,
        caller="ringar.parallel.Pipelined",
        remedy="Build the same pipeline, of the same model, on all ranks. Give layers names if "
        "ranks have made different numbers of layers before.",
    )


def grid_for(grid: Grid | None, modules: int | None) -> Grid:
    """Return the grid of the modules: the user's, the current or a new one."""
    if grid is None:
        current = grids.current()
        if current is None or modules not in (None, current.model):
            return Grid(model=place.size() if modules is None else modules)
        return current
    grid = grids.resolve(grid, "Pipelined")
    if modules not in (None, grid.model):
        raise ValueError(
            "`modules` must be the number of parts of the grid. "
            f"Received: modules={modules}, grid={grid}"
        )
    return grid


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
        ValueError: on every rank, if an argument or a synthesizer of any of them does not fit.
    """
    if schedule != SYNTHETIC:
        plan.refuse_if_given(schedule)
        return None
    synthesizers: list[Synthesizers] = []

    def make() -> int:  # a user's function may fail for the cut of one module only
        synthesizers.append(Synthesizers(plan, graph, network, grid.part, grid.model))
        return int(np.random.randint(2**31))

    deed = "to make its synthesizers"
    synthesizers[0].seed, *_ = together(make, caller="ringar.parallel.Pipelined", deed=deed)
    return synthesizers[0]
