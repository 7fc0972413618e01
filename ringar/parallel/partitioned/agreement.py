"""The agreement of all ranks on a layer, when it is built: its settings, its plane, its name.

Each rank describes the layer and its tile. One all-gather of the descriptions shows whether all
have made the same layer, and how large the whole plane is, also in models without a graph. All
ranks compare the same descriptions, so that all raise the same error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras

from ringar.collectives import allgather_object
from ringar.collectives.agree import compare
from ringar.errors import MismatchError
from ringar.job import place
from ringar.sharding.grid import Grid
from ringar.sharding.pixelwise import describe
from ringar.sharding.planes import Plane

_NOT_COMPARED = ("name", "kernel_initializer", "bias_initializer")
"""Settings in which ranks may differ: numbered names, seeds."""


@dataclass(frozen=True)
class _Description:
    """Describe a layer of one rank."""

    name: str
    kind: str
    settings: dict[str, str]
    sizes: tuple[int | None, ...]
    """The sizes of the input, without examples, rows and columns."""
    tile: tuple[int | None, ...]
    """Its rows and columns; empty if the input does not have 4 dimensions."""


def agree(
    layer: keras.layers.Layer, grid: Grid, input_shape: Sequence[int | None], channel_axis: int
) -> tuple[str, list[tuple[int, int]]]:
    """Return rank 0's name of the layer, and the tiles of every model group by their parts.

    Collective over all ranks.

    Args:
        layer: a layer that is being built.
        grid: its grid.
        input_shape: the shape of its input on this rank.
        channel_axis: 3 or 1.

    Raises:
        ValueError: on all ranks, if they have made different layers, if an input is no images or
            has unknown rows or columns, or if these differ between model groups.
    """
    description = _description(layer, grid, input_shape, channel_axis)
    ranks = [description]
    if place.size() > 1:
        ranks = allgather_object(description, name="partitioned/layer")
    for rank, layout in enumerate(ranks):
        if not layout.tile:
            raise ValueError(
                f"The input of {layout.kind} {ranks[0].name} must be images, of 4 dimensions. "
                f"Received: shape (examples, {', '.join(map(str, layout.sizes))}) on rank {rank}"
            )
    compare(
        [
            {
                "class": layout.kind,
                "settings": layout.settings,
                "channels": layout.sizes,
            }
            for layout in ranks
        ],
        caller=f"{description.kind} {description.name}",
        remedy="Build the model alike on all ranks.",
    )
    for rank, layout in enumerate(ranks):
        if None in layout.tile:
            raise ValueError(
                f"The rows and columns of the input of {layout.kind} {ranks[0].name} must be "
                f"known. Received: {layout.tile} on rank {rank}. Give keras.Input their numbers."
            )
    of_ranks: Any = [layout.tile for layout in ranks]
    groups = [of_ranks[at : at + grid.model] for at in range(0, len(ranks), grid.model)]
    for group, tiles in enumerate(groups):
        if tiles != groups[0]:
            raise MismatchError(
                f"The input of {description.kind} {ranks[0].name} must have the same rows and "
                f"columns in every model group. Received: {groups[0]} on the ranks of group 0, and "
                f"{tiles} on those of group {group}. Give all groups images of one size, cut alike."
            )
    return ranks[0].name, groups[0]


def plane_of_tiles(
    layer: keras.layers.Layer, tiles: Sequence[tuple[int, int]], grid: Grid, channel_axis: int
) -> Plane:
    """Return the plane that tiles of these sizes make.

    Raises:
        ValueError: the rows and columns are not dealt out evenly.
    """
    _, columns = grid.tiles
    height = sum(rows for rows, _ in tiles[::columns])
    width = sum(columns_of_tile for _, columns_of_tile in tiles[:columns])
    plane = Plane(height, width, grid, channel_axis)
    check_tiles(layer, plane, tiles)
    return plane


def check_tiles(layer: keras.layers.Layer, plane: Plane, tiles: Sequence[tuple[int, int]]) -> None:
    """Refuse tiles that are not those of a plane.

    Raises:
        ValueError: a tile has another size than it must have.
    """
    check_cut(layer, plane)
    for part, (tile, box) in enumerate(zip(tiles, plane.tiles, strict=True)):
        if tile != (box.rows.size, box.columns.size):
            raise ValueError(
                f"The input of {describe(layer)} must be tiles of a plane of {plane}, the first "
                f"ones larger if there is a remainder: {box.rows.size} x {box.columns.size} for "
                f"part {part}. Received: {tile[0]} x {tile[1]}. ringar.parallel.tile(images, grid) "
                "cuts arrays so, ringar.layers.CutPlane() whole images."
            )


def check_cut(layer: keras.layers.Layer, plane: Plane, result: str = "a plane") -> None:
    """Refuse a plane that has no pixel for a part.

    Raises:
        ValueError: it has fewer rows or columns than there are tiles along them.
    """
    if not plane.is_cut:
        rows, columns = plane.grid.tiles
        raise ValueError(
            f"{describe(layer)} must have {result} with at least {rows} rows and {columns} "
            f"columns, for {rows} x {columns} tiles. Received: {plane.height} x {plane.width}. "
            "Join the plane before it with ringar.layers.GatherPlane(), or use a grid of fewer "
            "parts."
        )


def _description(
    layer: keras.layers.Layer, grid: Grid, input_shape: Sequence[int | None], channel_axis: int
) -> _Description:
    rows, columns = (1, 2) if channel_axis == 3 else (2, 3)
    settings = {k: str(v) for k, v in layer.get_config().items() if k not in _NOT_COMPARED}
    shape = tuple(input_shape)
    tile = (shape[rows], shape[columns]) if len(shape) == 4 else ()
    sides = (rows, columns) if tile else ()
    sizes = tuple(size for axis, size in enumerate(shape) if axis not in (0, *sides))
    return _Description(
        layer.name,
        type(layer).__name__,
        {**settings, "grid": str(grid)},
        sizes,
        tile,
    )
