"""The common part of allreduce and reduce-scatter before and after the exchange.

Both check the op, turn an average into a scaled sum, and apply the compressor
(ringar/collectives/compression.py).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ringar.collectives import call as calls
from ringar.collectives import compression as compressors
from ringar.collectives import ways
from ringar.collectives.call import Call
from ringar.collectives.compression import Compressor
from ringar.collectives.dtypes import Array
from ringar.collectives.ops import Average, ReduceOp
from ringar.job import membership, tensorflow
from ringar.job.process_sets import ProcessSet

if TYPE_CHECKING:
    import tensorflow as tf


def reduce(
    collective: str,
    tensors: Sequence[Array | tf.IndexedSlices],
    op: ReduceOp,
    compression: type[Compressor],
    prescale_factor: float,
    postscale_factor: float,
    name: str | None,
    process_set: ProcessSet | None,
    *,
    algorithm: str = "",
    arguments: tuple[Any, ...] = (),
) -> list[Any]:
    """Run a collective that reduces; the arguments are those of `ringar.allreduce`.

    A call of one tensor is remembered by its `arguments` (`ringar.collectives.repeats`).
    """
    wire = compressors.checked(compression)
    values = ways.values_of(tensors, collective)
    if not values:
        return []
    call, ranks = calls.begin(
        collective, process_set, name, prescale=prescale_factor, postscale=postscale_factor
    )
    call = with_op(call, op, ranks.size(), wire=wire, algorithm=algorithm)
    if op is Average and ranks.size() == 1:
        for dtype in dict.fromkeys(value.dtype.name for value in values):
            refuse_integer_average(call, dtype, op, 1)
    pairs = [compression.compress(value) for value in values]
    is_plain = compression.compress is Compressor.compress
    reduced = ways.run(call, [value for value, _ in pairs], arguments if is_plain else ())
    return [
        compression.decompress(value, context)
        for value, (_, context) in zip(reduced, pairs, strict=True)
    ]


def with_op(call: Call, op: ReduceOp, ranks: int, *, wire: str = "", algorithm: str = "") -> Call:
    """Return the call with the settings of a reduction; an average becomes a scaled sum.

    In a graph that may outlive the number of ranks, the engine computes the factor at run time.

    Raises:
        ValueError: `op` is no `ReduceOp`.
    """
    if not isinstance(op, ReduceOp):
        raise ValueError(
            call.refusal(
                "an op out of ringar.Sum, Average, Min, Max and Product",
                repr(op),
                "Pass one of those.",
            )
        )
    factor, mean = call.postscale, False
    if op is Average:
        mean = not tensorflow.is_eager() and membership.is_elastic()
        factor = factor if mean else factor / ranks
    return _reduction(call, op, factor, mean, wire, algorithm)


@functools.lru_cache(calls.REMEMBERED)
def _reduction(
    call: Call, op: ReduceOp, factor: float, mean: bool, wire: str, algorithm: str
) -> Call:
    return dataclasses.replace(
        call, op="sum" if op is Average else op.value, postscale=factor, mean=mean, wire=wire,
        algorithm=algorithm,
    )  # fmt: skip


def refuse_integer_average(call: Call, dtype: str, op: ReduceOp, ranks: int) -> None:
    """Raise ValueError for an average of integers, which would be truncated, on one rank alone.

    On several ranks an average has a factor, which the engine refuses for integers. The other
    ranks, whose dtype may differ, then get the error, too, instead of waiting for this rank.
    """
    if ranks == 1 and op is Average and "float" not in dtype:
        raise ValueError(
            call.refusal(
                "a floating dtype for op=ringar.Average, since the average of integers would be "
                "cut off",
                dtype,
                "Use op=ringar.Sum and divide, or cast.",
            )
        )
