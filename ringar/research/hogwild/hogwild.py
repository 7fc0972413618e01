"""`Hogwild`: ranks of a host train one model in shared memory, without locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from ringar.errors import UnsupportedError
from ringar.job import place
from ringar.job.process_sets import or_all
from ringar.keras.optimizer import distribute
from ringar.research.hogwild.shared_weights import sharing

if TYPE_CHECKING:
    from ringar.job.process_sets import ProcessSet


def Hogwild(  # the paper's name
    optimizer: str | keras.optimizers.Optimizer,
    *,
    atomic: bool = True,
    lock: bool = False,
    process_set: ProcessSet | None = None,
) -> keras.optimizers.Optimizer:
    """Make `optimizer` train weights that all ranks of the host share, without waiting for anybody.

    Hogwild! (Niu et al. 2011). The weights lie in shared memory. In each step a rank computes with
    what it has read, and adds what its optimizer has changed, while the others do the same. It pays
    where the gradients of a step are sparse: ranks rarely change the same elements, and a step is
    too short to wait for others. Use `ringar.layers.HogwildEmbedding` for tables: a step then reads
    and changes the rows of its batch only.

    Each rank takes its own steps, at its own pace. An epoch ends when all ranks have ended it:
    then all of them have the same weights, which `fit` evaluates and saves, and so does a loop of
    your own behind `ringar.join(optimizer)`. The optimizer's slots stay those of each rank.

    An element that no other rank has changed since it was read gets its new value bit for bit: one
    rank computes what plain Keras computes. The order of other changes is that of their arrival, so
    runs differ.

    Args:
        optimizer: a `keras.optimizers.Optimizer`, or the name of one. The object itself becomes
            distributed and keeps its state.
        atomic: whether each element is added atomically, so that no change is lost. Without it
            changes of the same element at the same time may be lost.
        lock: whether one rank at a time changes a chunk of 32 KiB, to compare with. It takes the
            place of `atomic`.
        process_set: the ranks that train together, all on one host; by default all.

    Returns:
        `optimizer`, whose class is now `Distributed<class>`, as that of
        `ringar.DistributedOptimizer`.

    Raises:
        NotInitializedError: before `ringar.init()`.
        ValueError: if `optimizer` is distributed already.
        UnsupportedError: if the ranks are on several hosts; in the first step, with layers that
            are cut, weights of 8 or 16 bits, in an elastic job, if XLA compiles it for a GPU, or if
            XLA compiles a model with a `ringar.layers.HogwildEmbedding`.
    """
    hosts = _hosts(process_set) if place.is_initialized() else 1
    if hosts > 1:
        raise UnsupportedError(
            f"rank {place.rank()} | ringar.Hogwild: expected ranks of one host, received ranks of "
            f"{hosts}: they share no memory. Give it a process set of each host, or use "
            "ringar.DistributedOptimizer."
        )
    exchange = sharing(lock, atomic and not lock, process_set)
    return distribute(optimizer, exchange, "ringar.Hogwild")


def _hosts(process_set: ProcessSet | None) -> int:
    config = place.require("ringar.Hogwild()")
    return len({config.hosts[rank] for rank in or_all(process_set).ranks}) if config.hosts else 1
