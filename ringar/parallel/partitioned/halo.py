"""The halo exchange: each tile gets the pixels around it that its outputs read.

Forward, one all-to-all of rows of uneven number over the model group. A rank cuts from its tile,
for each other rank, the rectangle that the other needs (`reach.Reach.message`), and packs all of
them into one vector. It receives such rectangles, and puts them around its own tile.
Backward the same rectangles of the gradient return, and a rank adds them where they came from.

With B examples, C channels and numbers of k bytes, a rank sends forward

    k B C x (sum over the other ranks of the pixels of its tile that they need)

bytes, and backward as much as it has received. That is the least: each pixel crosses once per rank
that needs it, in one message, and nothing else crosses. An all-gather would send whole tiles, and
messages from neighbor to neighbor would send corners twice and cuts that are thinner than the reach
several times. Ranks compute all sizes from the plane alone, without negotiation.
Where no rank needs another's pixels, as for 1 x 1 kernels, there is no collective.

Within planes that are cut, a rank's gradients are those of M times the loss, for M parts. The
gradient of a weight that all ranks hold, a kernel for example, is the sum of the tiles'
contributions, and so the average over the model group of the gradients that its ranks have. An
optimizer computes this average for all such weights: those of a convolution, of a batch
normalization or of a user's layer. The factor enters where planes are joined (`crossing`). It ends
where they are cut, and at weights that are cut, which are read through `scale_gradient`.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ringar.collectives import alltoall
from ringar.parallel.exchange import Backward
from ringar.parallel.partitioned.pieces import Pieces, checked
from ringar.parallel.partitioned.reach import Reach
from ringar.sharding.grid import Grid
from ringar.sharding.planes import Box


def exchange(x: tf.Tensor, reach: Reach, name: str) -> tf.Tensor:
    """Return all pixels of the plane that this rank's outputs read, without padding.

    Args:
        x: this rank's tile.
        reach: the pixels that the tiles read.
        name: in errors, timelines and statistics.
    """
    grid = reach.plane.grid
    me, parts = grid.part, range(grid.model)
    tile, needs = reach.plane.local_tile, reach.needs(me)
    overlap = tile.meet(needs)
    if not any(reach.pixels_sent(part) for part in parts):
        return x if overlap == tile else Pieces(x, reach.plane).cut(x, overlap.seen_from(tile))
    peers = [part for part in parts if part != me]
    sends = [reach.message(me, part) if part in peers else _empty(tile) for part in parts]
    receives = [reach.message(part, me) if part in peers else _empty(needs) for part in parts]

    @tf.custom_gradient
    def extend(x: tf.Tensor) -> tuple[tf.Tensor, Backward]:
        pieces = Pieces(x, reach.plane)
        places = [box.seen_from(tile) for box in sends]
        received = _trade(x, pieces, places, receives, grid, name)
        if overlap.area:
            received[me] = pieces.cut(x, overlap.seen_from(tile))

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            origins = [box.seen_from(needs) for box in receives]
            back = _trade(upstream, pieces, origins, sends, grid, f"{name}/gradient")
            gradients = [(at, g) for at, g in zip(places, back, strict=True) if g is not None]
            if overlap.area:
                gradient = pieces.cut(upstream, overlap.seen_from(needs))
                gradients.append((overlap.seen_from(tile), gradient))
            return pieces.add(gradients, tile)

        return pieces.join(received, grid.tiles[1]), backward

    return extend(x)


def _empty(box: Box) -> Box:
    """Return a box at the same place without pixels."""
    return Box(*(side._replace(stop=side.start) for side in box))


def _trade(
    x: tf.Tensor,
    pieces: Pieces,
    send: Sequence[Box],
    receive: Sequence[Box],
    grid: Grid,
    name: str,
) -> list[tf.Tensor | None]:
    """Send boxes of `x`; return the pieces received, by part; None for empty ones."""
    vector = pieces.pack([pieces.cut(x, box) for box in send if box.area])
    splits = pieces.numbers([box.area for box in send])
    vector, sizes = alltoall(vector, splits, name=name, process_set=grid.model_set)
    vector = checked(vector, sizes, pieces.numbers([box.area for box in receive]))
    received = iter(pieces.unpack(vector, [box for box in receive if box.area]))
    return [next(received) if box.area else None for box in receive]
