"""The memory that a rank needs for a model: weights, gradients, slots and activations.

The first three are known from shapes. Slots are counted on a copy of the optimizer that is built
with a scalar in the place of each variable. Activations are measured: the greatest resident memory
of the process in one forward and backward pass, less what it had before and less the gradients.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from ringar.collectives.dtypes import ITEM_BYTES
from ringar.errors import UnsupportedError
from ringar.job import place
from ringar.keras.optimizer_copy import copy_of
from ringar.keras.sharded import STAGES, check_elementwise
from ringar.keras.zero import units
from ringar.sharding import slots
from ringar.sharding.slots import inner_optimizer

if TYPE_CHECKING:
    import numpy as np

    from ringar.keras.zero.offload import Kind

_MIB = 2**20


@dataclass(frozen=True)
class MemoryRow:
    """Hold the bytes that one rank needs.

    Attributes:
        shard: as for `ringar.DistributedOptimizer`; None: every rank has all.
        ranks: the number of ranks.
        weights: the bytes of the model's weights; with "weights" those of slices, and of the two
            largest successive layers while they are gathered.
        gradients: the bytes of gradients.
        slots: the bytes of the optimizer's variables.
        activations: the bytes that a step needs besides; None if no batch was given.
    """

    shard: str | None
    ranks: int
    weights: int
    gradients: int
    slots: int
    activations: int | None

    @property
    def total(self) -> int:
        """The sum; without activations, if they are not known."""
        return self.weights + self.gradients + self.slots + (self.activations or 0)


@dataclass(frozen=True)
class MemoryReport:
    """Hold what `ringar.memory_report` finds; `str` of it is a table in MiB.

    Attributes:
        rows: one for each stage and number of ranks.
        available: the bytes that this process may still take: its share of the host's free memory,
            or less, if a cgroup, RLIMIT_AS or RLIMIT_DATA says so.
    """

    rows: tuple[MemoryRow, ...]
    available: int

    def that_fit(self) -> tuple[MemoryRow, ...]:
        """Return the rows whose total is at most `available`."""
        return tuple(row for row in self.rows if row.total <= self.available)

    def __str__(self) -> str:
        lines = ["shard      ranks   weights gradients     slots activations     total MiB  fits"]
        for row in self.rows:
            mebibytes = "?" if row.activations is None else f"{row.activations / _MIB:.1f}"
            fits = "yes" if row.total <= self.available else "no"
            lines.append(
                f"{row.shard or 'none':<10}{row.ranks:>6}{row.weights / _MIB:>10.1f}"
                f"{row.gradients / _MIB:>10.1f}{row.slots / _MIB:>10.1f}{mebibytes:>12}"
                f"{row.total / _MIB:>14.1f}{fits:>6}"
            )
        return "\n".join([*lines, f"available: {self.available / _MIB:.1f} MiB"])


def memory_report(
    model: keras.Model,
    optimizer: str | keras.optimizers.Optimizer | None = None,
    batch: np.ndarray | Sequence[np.ndarray] | None = None,
    ranks: Sequence[int] = (1, 2, 4, 8),
    offload: Kind | None = None,
) -> MemoryReport:
    """Return the bytes that a rank needs for training, for each stage and number of ranks.

    Call it before training, and before `ringar.init` if you like: nothing is sent.

    Args:
        model: a built model.
        optimizer: the optimizer, built or not, or its name; by default that of the model.
        batch: the inputs of one step of a rank, as the model takes them. A forward and a backward
            pass on them are run, once, to measure activations. None: they are left out.
        ranks: the numbers of ranks.
        offload: as for `ringar.DistributedOptimizer`. With "disk", slots are those of one variable:
            the step reads one after the other. "memory" changes nothing: it is the host's memory.

    Returns:
        The report; print it for a table.

    Raises:
        ValueError: the model is not built, there is no optimizer, or it needs whole variables.
        UnsupportedError: the system is another one than Linux, and tells less of its memory.

    Example:
    ```python
    print(ringar.memory_report(model, "adam", batch=x[:32]))
    ```
    """
    if sys.platform != "linux":
        raise UnsupportedError(
            "ringar.memory_report: expected Linux, which tells what memory a process has and may "
            f"take; received {sys.platform}. Call it on a machine that will train."
        )
    optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
    if not model.built or optimizer is None:
        raise ValueError(
            "`model` must be built, and `optimizer` be given unless the model is compiled. "
            f"Received: built={model.built}, optimizer={optimizer}"
        )
    optimizer = inner_optimizer(keras.optimizers.get(optimizer))
    check_elementwise(optimizer)
    weights = sum(map(_bytes, model.weights))
    trained = model.trainable_variables
    gradients = sum(map(_bytes, trained))
    of_variables, of_optimizer = _slots_of(optimizer, trained)
    activations = None if batch is None else _activations(model, batch, gradients)
    # Two successive units: the second is prefetched.
    gathered = units.most_gathered(model, _bytes)
    rows = []
    for shard in (None, *STAGES):
        for size in ranks:
            cut = size if shard is not None else 1
            slices = [_slice_bytes(v, cut) for v in trained]
            slot_bytes = [n * b for n, b in zip(of_variables, slices, strict=True)]
            if offload == "disk" and shard in ("optimizer", "gradients"):
                slot_bytes = [max(slot_bytes, default=0)]
            sharded = shard == "weights" and size > 1
            rows.append(
                MemoryRow(
                    shard,
                    size,
                    weights - gradients + sum(slices) + gathered if sharded else weights,
                    sum(slices) if shard in ("gradients", "weights") else gradients,
                    of_optimizer + sum(slot_bytes),
                    activations,
                )
            )
    return MemoryReport(tuple(rows), _available())


def _bytes(variable: Any) -> int:
    return _slice_bytes(variable, 1)


def _slice_bytes(variable: Any, ranks: int) -> int:
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return -(-math.prod(variable.shape) // ranks) * ITEM_BYTES[dtype]


def _slots_of(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]
) -> tuple[list[int], int]:
    """Return the number of slots per variable, and the bytes of the optimizer's other variables."""
    copy = copy_of(optimizer)
    scalars = [
        keras.Variable(0.0, dtype=v.dtype, trainable=True, name=f"stand_in_{i}")
        for i, v in enumerate(variables)
    ]
    copy.build(scalars)
    owners = [owner for owner, _ in slots.owners(copy)]
    counts = [sum(owner is scalar for owner in owners) for scalar in scalars]
    pairs = zip(copy.variables, owners, strict=True)
    return counts, sum(_bytes(variable) for variable, owner in pairs if owner is None)


def _activations(model: keras.Model, batch: Any, gradients: int) -> int:
    """Measure one forward and backward pass."""

    @tf.function(autograph=False)
    def step(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(model(inputs, training=True))
            loss = tf.add_n([tf.reduce_mean(tf.cast(output, tf.float32)) for output in outputs])
        gradients = tape.gradient(loss, model.trainable_variables)
        return [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]

    inputs = tf.nest.map_structure(tf.convert_to_tensor, batch)
    before_step = [(v, keras.ops.convert_to_numpy(v)) for v in model.non_trainable_variables]
    traced = step.get_concrete_function(inputs)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # forget the greatest resident memory so far
    before = _status("VmRSS")
    traced(inputs)
    growth = _status("VmHWM") - before - gradients
    for variable, value in before_step:  # moving statistics and seeds
        variable.assign(value)
    return max(growth, 0)


def _status(name: str) -> int:
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(name))
    return int(line.split()[1]) * 1024


def _available() -> int:
    import resource  # which Windows lacks

    with open("/proc/meminfo") as file:
        free = next(line for line in file if line.startswith("MemAvailable"))
    ranks = place.local_size() if place.is_initialized() else 1
    limits = [int(free.split()[1]) * 1024 // ranks]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        if os.path.exists(path):
            with open(path) as file:
                text = file.read().strip()
            if text.isdigit():
                limits.append(max(int(text) // ranks - _status("VmRSS"), 0))
    for limit, field in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            limits.append(max(soft - _status(field), 0))
    return min(limits)
