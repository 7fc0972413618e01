"""The stages of `shard`: which variables are cut into slices, which optimizers can train them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import keras

from ringar.collectives.compression import has_state
from ringar.errors import UnsupportedError
from ringar.job import membership, place
from ringar.keras.exchange import Exchange
from ringar.keras.reduce_scatter import ReduceScatter
from ringar.keras.reduction import Reduction
from ringar.keras.sharded_weights import LayerReduceScatter, WeightSlices
from ringar.keras.variable_slices import VariableSlices
from ringar.sharding.slice_ranks import Slicing
from ringar.sharding.slots import NOT_ELEMENTWISE, inner_optimizer, with_nested

if TYPE_CHECKING:
    from ringar.keras.zero.offload import Offload
    from ringar.sharding.grid import Grid
    from ringar.sharding.slice_ranks import ShardRanks

Stage = Literal["optimizer", "gradients", "weights"]
"""The variables that are cut into slices."""

STAGES = ("optimizer", "gradients", "weights")
_REFUSED = (*NOT_ELEMENTWISE, "MultiOptimizer")


def sharding(
    stage: Stage, reduction: Reduction, slicing: Slicing, offload: Offload | None
) -> Exchange:
    """Return the exchange of ranks that train slices.

    Args:
        stage: which variables are cut into slices.
        reduction: how gradients are reduced.
        slicing: the ranks among which each variable is cut.
        offload: makes the slots; None: Keras makes them, beside the variables.
    """
    if stage == "weights":
        weights = WeightSlices(reduction, slicing)
        weights.trainer = LayerReduceScatter(stage, reduction, weights)
        parts: tuple[ReduceScatter, VariableSlices] = (weights.trainer, weights)
    else:
        slices = VariableSlices(reduction, slicing, offload)
        parts = (ReduceScatter(stage, reduction, slices), slices)
    grid = slicing.grid
    return Exchange(
        *parts,
        description={
            **reduction.description,
            "shard": stage,
            "shard_ranks": slicing.shard_ranks,
            "grid": None if grid is None else str(grid),
            "offload": None if offload is None else offload.kind,
        },
        chosen={**reduction.chosen, "algorithm": None},  # which changes nothing here
        twin=lambda: sharding(
            stage, reduction.renewed(), slicing, None if offload is None else offload.renewed()
        ),
    )


def check_arguments(
    stage: Stage, grid: Grid | None, shard_ranks: ShardRanks | None, offload: Offload | None
) -> None:
    """Check that the arguments of stage 3 go with each other.

    Raises:
        ValueError: they do not.
    """
    arguments = {"grid": grid, "shard_ranks": shard_ranks, "offload": offload}
    names = [f"`{name}`" for name, value in arguments.items() if value is not None]
    if stage == "weights" and names:
        raise ValueError(
            f'{" and ".join(names)} must be None with shard="weights", whose slices of weights are '
            'those of all ranks and lie in their memory. Use shard="gradients", or leave it out.'
        )


def check_elementwise(optimizer: keras.optimizers.Optimizer) -> None:
    """Check that an optimizer treats each element by itself.

    Args:
        optimizer: the optimizer, built or not.

    Raises:
        ValueError: it needs whole variables.
    """
    for nested in with_nested(inner_optimizer(optimizer)):
        names = [base.__name__ for base in type(nested).__mro__]
        if name := next((name for name in names if name in _REFUSED), None):
            is_multiple = name == "MultiOptimizer"
            reason = "has optimizers of its own" if is_multiple else "computes with whole variables"
            raise ValueError(
                f"`optimizer` must treat each element by itself with `shard`: {name} {reason}. "
                f"Received: {type(nested).__name__}. Use Adam, AdamW, SGD, RMSprop or Lion, for "
                "example, or leave out `shard`."
            )


def check(optimizer: keras.optimizers.Optimizer, reduction: Reduction) -> None:
    """Check that an optimizer can be sharded.

    Args:
        optimizer: the optimizer, built or not.
        reduction: how its gradients are reduced.

    Raises:
        ValueError: it needs whole variables, or an argument does not go with `shard`.
        UnsupportedError: the job is elastic.
    """
    check_elementwise(optimizer)
    if has_state(reduction.compression):
        raise ValueError(
            "`compression` must be none, fp16 or bf16 with `shard`: PowerSGD sums whole matrices. "
            f"Received: {reduction.compression}"
        )
    if reduction.algorithm is not None:
        raise ValueError(
            "`algorithm` must be None with `shard`: it is one of allreduces, of which there are "
            f"none. Received: algorithm={reduction.algorithm!r}"
        )
    if membership.is_elastic():
        raise UnsupportedError(
            f"rank {place.rank()} | DistributedOptimizer: expected a job whose ranks stay with "
            "`shard`, since each has slots that no other has, received one whose ranks may "
            "change; leave out --min-np"
        )
