"""The arguments of `ringar.ParameterServer`: their checks and their meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from ringar.asynchronous.log import LOST, Entry
from ringar.asynchronous.partition import Description, Piece
from ringar.asynchronous.staleness import StalenessControl
from ringar.collectives.agree import same
from ringar.job import place
from ringar.job.process_sets import ProcessSet
from ringar.keras import description
from ringar.keras.optimizer import is_distributed
from ringar.sharding.cut import cut_of
from ringar.sharding.slots import NOT_ELEMENTWISE, inner_optimizer, with_nested


def variables_of(model_or_variables: keras.Model | Sequence[keras.Variable]) -> list[Any]:
    """Return the variables of a model, or the variables themselves."""
    if isinstance(model_or_variables, keras.Model) and not model_or_variables.built:
        raise ValueError(
            "ringar.ParameterServer expected a model that is built; received "
            f"{model_or_variables.name!r} without weights. Give it a keras.Input, or call it on a "
            "batch."
        )
    variables = list(
        model_or_variables.trainable_variables
        if isinstance(model_or_variables, keras.Model)
        else model_or_variables
    )
    if not variables:
        raise ValueError("ringar.ParameterServer expected at least one variable; received none.")
    if any(cut_of(variable) is not None for variable in variables):
        raise ValueError(
            "ringar.ParameterServer expected variables that each rank has as a whole; received "
            "some of layers that are split."
        )
    refuse_overwritten("ringar.ParameterServer", variables)
    return variables


def roles(
    servers: Sequence[int] | None, size: int, process_set: ProcessSet | None
) -> tuple[list[int], list[int]]:
    """Return the ranks that serve, and those that work, of the `size` ranks of a process set."""
    if servers is None:
        return list(range(size)), list(range(size))
    if size < place.size():
        raise ValueError(
            "`servers` needs all ranks of the job, which make a process set of the workers "
            f"together. Received: process_set={process_set}"
        )
    serving = list(servers)
    working = [rank for rank in range(size) if rank not in serving]
    if not serving or len(set(serving)) != len(serving) or not set(serving) <= set(range(size)):
        raise ValueError(
            f"`servers` must be different ranks from 0 to {size - 1}, at least one. "
            f"Received: {servers}"
        )
    if not working:
        raise ValueError(f"`servers` must leave a rank that works. Received: {servers}")
    return serving, working


def agree(
    variables: Sequence[Any],
    descriptions: Sequence[Description],
    servers: Sequence[int],
    control: StalenessControl,
    optimizer: keras.optimizers.Optimizer,
    options: Sequence[str],
    process_set: ProcessSet,
) -> None:
    """Raise on every rank if ranks have passed different arguments. Collective.

    Args:
        variables: the variables that are served.
        descriptions: their descriptions.
        servers: the rank of each shard.
        control: as for the server.
        optimizer: as for the server.
        options: the names of the optional arguments that this rank has passed.
        process_set: the ranks of the server.
    """
    same(
        {
            "number of variables": len(descriptions),
            **{f"variable {i}": f"{v.dtype}{v.shape}" for i, v in enumerate(descriptions)},
            "constraints": _constraints(variables),
            "servers of the shards": list(servers),
            "control": repr(control),
            "optimizer": description.optimizer(optimizer, variables, rate=True),
            **dict.fromkeys(options, "given"),
        },
        caller="ringar.ParameterServer",
        remedy="Make the same model, and pass the same arguments, on all ranks.",
        process_set=process_set,
    )


def _constraints(variables: Sequence[Any]) -> list[Any]:
    """Return a description of the constraint of each variable, to compare."""
    of_variables = [getattr(variable, "constraint", None) for variable in variables]
    return [
        constraint and (type(constraint).__name__, getattr(constraint, "get_config", dict)())
        for constraint in of_variables
    ]


def check(
    optimizer: object, shards: int, save_every: int | None, log_size: int | None = None
) -> None:
    """Expect a new optimizer, and numbers in their range."""
    if not isinstance(optimizer, keras.optimizers.Optimizer) or is_distributed(optimizer):
        raise ValueError(
            "`optimizer` must be an optimizer of Keras that is not distributed. "
            f"Received: {optimizer!r}"
        )
    if optimizer.built or isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "`optimizer` must be a new one, without slots and without a scale of the loss: each "
            "shard has a copy of it. Received: "
            f"{'one that was built' if optimizer.built else 'a LossScaleOptimizer'}"
        )
    if shards < 1:
        raise ValueError(f"`shards` must be 1 or more. Received: {shards}")
    if save_every is not None and save_every < 1:
        raise ValueError(f"`save_every` must be 1 or more updates. Received: {save_every}")
    if log_size is not None and log_size < 0:
        raise ValueError(f"`log_size` must be 0 or more pushes, or None. Received: {log_size}")


def check_schedule(entries: Sequence[Entry], pushes: Mapping[int, int]) -> None:
    """Expect a schedule to go on where the shards are, which have taken `pushes` pushes each."""
    orphan = next((entry for entry in entries if entry.update == LOST), None)
    if orphan is not None:
        raise ValueError(
            "`schedule` must be the log of a run in which all shards got each push. Received: "
            f"{orphan}, of a worker that died in the middle. ringar.asynchronous.replay takes it."
        )
    first = dict(pushes)
    for entry in sorted(entries, reverse=True):
        first[entry.shard] = entry.sequence
    for shard, sequence in first.items():
        if sequence != pushes.get(shard):
            raise ValueError(
                f"`schedule` must begin with push {pushes.get(shard)} to shard {shard}. Received: "
                f"a log that begins with push {sequence}. Record it with log_size=None, and as "
                "many shards."
            )


def check_cut(optimizer: keras.optimizers.Optimizer, pieces: Sequence[Sequence[Piece]]) -> None:
    """Refuse an optimizer that needs the elements of other shards."""
    optimizers = [inner_optimizer(part) for part in with_nested(optimizer)]
    if len(pieces) > 1 and any(part.global_clipnorm for part in optimizers):
        raise ValueError(
            "`global_clipnorm` must be None with several shards, which have a part of the gradient "
            f"each. Received: {optimizer.global_clipnorm} and {len(pieces)} shards. Pass shards=1, "
            "or `clipvalue`."
        )
    cut = [piece.name for of_shard in pieces for piece in of_shard if not piece.is_whole]
    names = [
        part.__class__.__name__ for part in optimizers if part.__class__.__name__ in NOT_ELEMENTWISE
    ]
    if cut and (names or any(part.clipnorm for part in optimizers)):
        raise ValueError(
            "`optimizer` must treat each element by itself where variables are cut: "
            f"{names[0] if names else '`clipnorm`'} uses norms of whole variables. Received: "
            f"shards that cut {', '.join(cut[:4])}. Pass shards=1, or another optimizer."
        )


def settings(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """Return the arguments of an optimizer but its name, which Keras chooses on each rank."""
    try:
        config = optimizer.get_config()
    except NotImplementedError:  # a schedule of the user's class
        return {"learning_rate": type(optimizer._learning_rate).__name__}
    return {key: value for key, value in config.items() if key != "name"}


def refuse_overwritten(function: str, variables: Sequence[Any]) -> None:
    """Refuse variables whose gradients are new values: sums of these mean nothing."""
    replaced = [v.path for v in variables if getattr(v, "overwrite_with_gradient", False)]
    if replaced:
        raise ValueError(
            f"{function} expected variables that gradients change; received {replaced[0]!r} with "
            "overwrite_with_gradient=True (a float8 policy), whose gradients take its place. Use "
            "another dtype policy, or ringar.DistributedOptimizer."
        )
