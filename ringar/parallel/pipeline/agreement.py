"""What the ranks of a pipeline agree on before they train: the grid, the cuts, the synthesizers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from ringar.collectives import allgather_object
from ringar.job import place
from ringar.keras.checks import require_equal
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
    own = {name: repr(value) for name, value in arguments.items()}
    ranks = allgather_object((own, cut.describe(model)), name="pipeline/arguments")
    for name in dict.fromkeys(itertools.chain.from_iterable(given for given, _ in ranks)):
        require_equal(
            [given.get(name, "nothing") for given, _ in ranks],
            f"`{name}`",
            "Build the same pipeline on all ranks.",
        )
    for layers in itertools.zip_longest(*(layers for _, layers in ranks), fillvalue="no layer"):
        require_equal(
            layers,
            "layer of `model`",
            "Build the same model on all ranks. Give its layers names if ranks have made "
            "different numbers of layers before.",
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

    def timed() -> list[int] | ValueError:
        try:
            seconds = balance.seconds_per_node(graph, batch_size)
            return balance.partition(graph, seconds, grid.model)
        except Exception as error:  # to be raised on every rank
            return ValueError(f"rank 0 could not time the layers: {error}")

    found: Any = grid.agree(timed() if place.rank() == 0 else None)
    if isinstance(found, ValueError):
        raise found
    return list(found)


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
    failure, made = None, None
    try:
        made = Synthesizers(plan, graph, network, grid.part, grid.model)
    except ValueError as error:
        failure = str(error)
    except Exception as error:  # of the user's function; other modules call it for other cuts
        failure = f"A synthesizer could not be made: {type(error).__name__}: {error}"
    own = (failure, int(np.random.randint(2**31)))
    ranks = allgather_object(own, name="synthesizers")
    for rank, (message, _) in enumerate(ranks):
        if message is not None:
            raise ValueError(f"rank {rank} | {message}")
    assert made is not None
    made.seed = ranks[0][1]
    return made
