"""Weights in memory that the ranks of a host share, and that each of them changes by itself.

Each trainable variable has a window, whose elements lie on the first rank. A rank computes with
variables of its own, which are copies of what it has read last. Around a step:

    read    of a table the rows of the batch, in its lookup; other variables were read behind the
            step before
    step    the optimizer changes this rank's variables
    add     the changes are added to the windows, and the sums are read

The addition is `ringar.Window.update`: an element that nobody has changed since it was read gets
the new value bit for bit. So ranks whose steps touch different elements, or one rank, compute what
plain Keras computes.

When an epoch ends, all ranks meet and read all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from ringar.asynchronous.server_arguments import refuse_overwritten
from ringar.collectives import Window, allreduce, barrier
from ringar.collectives.host_call import host_call
from ringar.errors import UnsupportedError
from ringar.job import membership
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import share
from ringar.keras.exchange import Exchange, LocalGradients, Period, Variables
from ringar.sharding import slots
from ringar.sharding.cut import cut_of

FIRST = 0
"""The rank of the process set with which the elements of all windows lie."""
DTYPES = ("float32", "float64", "int32", "int64")
"""The dtypes of variables that can be shared."""

_ONLY_ROW = np.zeros(1, np.int64)


class SharedVariable:
    """Hold the elements of a variable in a window, which has them in rows.

    Args:
        variable: a variable of Keras.
        number: its number in the model, which names the window.
        process_set: the ranks that share it.
        lock: as for `ringar.Window.update`.
        atomic: as for `ringar.Window.update`.

    Attributes:
        is_table: whether a step reads and changes some of its rows only.
    """

    def __init__(
        self,
        variable: Any,
        number: int,
        process_set: ProcessSet | None,
        lock: bool,
        atomic: bool,
    ) -> None:
        self.variable = variable
        self.is_table = is_table(variable)
        self._shape = tuple(int(length) for length in variable.shape)
        size = int(np.prod(self._shape, dtype=np.int64))
        self._width = self._shape[-1] if self.is_table else size
        length = size if or_all(process_set).rank() == FIRST else 0
        dtype = keras.backend.standardize_dtype(variable.dtype)
        self._window = Window(length, dtype, process_set, name=f"hogwild/{number}")
        self._options = {"lock": lock, "atomic": atomic}

    def read_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return rows as they are now."""
        return self._window.gather(FIRST, rows, self._width)

    def update(self, rows: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Add the changes of rows, and return the sums."""
        return self._window.update(FIRST, rows, before, after, **self._options)

    def write(self) -> None:
        """Put the values of this rank into the window."""
        self._window.put(FIRST, np.asarray(keras.ops.convert_to_numpy(self.variable)))

    def read(self) -> None:
        """Give this rank the values of the window."""
        self.variable.assign(self._window.get(FIRST).reshape(self._shape))


class _Change(NamedTuple):
    """The target of a step: rows of a variable, and their values before it."""

    shared: SharedVariable
    rows: Any
    before: Any


class SharedWeights(Period):
    """Let ranks train one model, whose weights lie in shared memory.

    Args:
        lock: whether one rank at a time adds to a chunk.
        atomic: whether each element is added atomically.
        process_set: the ranks that train together; None: all.
    """

    in_every_step = False

    def __init__(self, lock: bool, atomic: bool, process_set: ProcessSet | None) -> None:
        self._process_set = process_set
        self._lock, self._atomic = lock, atomic
        self._optimizer: Any = None
        self._steps: tf.Variable | None = None
        self._shared: dict[int, SharedVariable] = {}
        self._changes: list[_Change] = []

    @property
    def counters(self) -> Sequence[Any]:
        """The counters of steps: this one's and the optimizer's."""
        if self._steps is None:
            return ()
        return [self._steps, *(o.iterations for o in slots.with_nested(self._optimizer))]

    def build(self, optimizer: Any, variables: Sequence[Any] | None) -> None:
        """Open a window for each of `variables`, which are those of all steps. Collective, once."""
        if self._steps is not None:
            return
        _check(optimizer, variables)
        if or_all(self._process_set).size() > 1:
            _check_alone(optimizer, variables or ())
        assert variables is not None
        self._optimizer = optimizer
        with tf.init_scope():
            self._steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="hogwild_steps")
            for number, variable in enumerate(variables):
                shared = SharedVariable(
                    variable, number, self._process_set, self._lock, self._atomic
                )
                self._shared[id(variable)] = shared
                variable._ringar_shared = shared
            self.state = [self._steps]
            self.begin_epoch()

    def begin_epoch(self) -> None:
        """Share the weights of the first rank."""
        if or_all(self._process_set).rank() == FIRST:
            for shared in self._shared.values():
                shared.write()
        self.settle()

    def begin_step(self, gradients: Sequence[Any], variables: Variables, loss_scale: Any) -> None:
        """Note the values before the step."""
        pairs = zip(gradients, variables or (), strict=True)
        changes = (self._change(gradient, variable) for gradient, variable in pairs)
        self._changes = [change for change in changes if change is not None]

    def end_step(self) -> None:
        """Add the changes of the step to the shared weights; read all but tables."""
        assert self._steps is not None
        changes, self._changes = self._changes, []
        variables = [change.shared.variable for change in changes if not change.shared.is_table]
        tensors = [
            tensor
            for change in changes
            for tensor in (change.rows, change.before, _values(change.shared, change.rows))
        ]
        # Functions in the graph must not hold tensors of it.
        act = _Act([change.shared for change in changes])
        results = [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]
        now = host_call(act, tensors, results, "Hogwild")
        for variable, value in zip(variables, now, strict=True):
            variable.assign(value)
        size = float(or_all(self._process_set).size())
        share.record(  # no rank waits for another one in a step: all are idle at once
            lambda _: tf.constant(size), [None], [next(iter(self._shared.values())).variable]
        )
        self._steps.assign_add(1)

    def settle(self) -> None:
        """Read all shared weights, when no rank changes them."""
        if self._steps is None:
            return
        barrier(name="hogwild", process_set=self._process_set)
        for shared in self._shared.values():
            shared.read()
        self._average()
        barrier(name="hogwild", process_set=self._process_set)

    def _average(self) -> None:
        """Average the moving averages of `use_ema`, which each rank has of its own reads."""
        owners = slots.owners(self._optimizer) if self._optimizer.built else []
        for slot, (_, name) in zip(self._optimizer.variables, owners, strict=False):
            if name == slots.AVERAGES:
                mean = allreduce(
                    keras.ops.convert_to_numpy(slot),
                    name="hogwild/averages",
                    process_set=self._process_set,
                )
                slot.assign(mean)

    def _change(self, gradient: Any, variable: Any) -> _Change | None:
        shared = self._shared.get(id(variable))
        if shared is None:
            raise ValueError(
                "`trainable_variables` must be those of the first step, whose values the ranks "
                f"share. Received: {getattr(variable, 'path', variable)!r}, which is new"
            )
        rows: Any = _ONLY_ROW
        if shared.is_table:
            if gradient is None:
                return None
            if not isinstance(gradient, tf.IndexedSlices):
                raise UnsupportedError(
                    f"The weights of a ringar.layers.HogwildEmbedding, {variable.path!r}, are used "
                    "otherwise than by lookups (by a regularizer, for example): a step would "
                    "change all rows. Use keras.layers.Embedding there."
                )
            rows = tf.cast(gradient.indices, tf.int64)
        return _Change(shared, rows, _values(shared, rows))


def sharing(lock: bool, atomic: bool, process_set: ProcessSet | None) -> Exchange:
    """Return the exchange of ranks that train shared weights, as `SharedWeights` does."""
    return Exchange(
        LocalGradients(process_set),
        period=SharedWeights(lock, atomic, process_set),
        description={"function": "ringar.Hogwild", "atomic": atomic, "lock": lock},
        twin=lambda: sharing(lock, atomic, process_set),
    )


class _Act:
    """Update shared variables with the arrays of a step; return all but tables."""

    def __init__(self, shared: Sequence[SharedVariable]) -> None:
        self._shared = list(shared)

    def __call__(self, *arrays: np.ndarray) -> list[np.ndarray]:
        results = []
        for number, shared in enumerate(self._shared):
            now = shared.update(*arrays[3 * number : 3 * number + 3])
            if not shared.is_table:
                results.append(now)
        return results


def is_table(variable: Any) -> bool:
    """Return whether a layer reads some rows of `variable` only, and reads them in each step."""
    return getattr(variable, "_ringar_is_table", False)


def shared_of(variable: Any) -> SharedVariable | None:
    """Return the shared elements of `variable`, once ranks share them."""
    return getattr(variable, "_ringar_shared", None)


def _values(shared: SharedVariable, rows: Any) -> tf.Tensor:
    """Return this rank's values that a step may change."""
    if shared.is_table:
        return tf.gather(shared.variable.value, rows)
    return tf.convert_to_tensor(shared.variable)


def _check(optimizer: Any, variables: Sequence[Any] | None) -> None:
    """Raise if `variables` cannot be shared."""
    if variables is None:
        raise ValueError(
            "`trainable_variables` must be passed with the gradients, or the optimizer be built: "
            "the ranks share their values. Received: trainable_variables=None"
        )
    if membership.is_elastic():
        raise UnsupportedError(
            "An elastic job (ringarrun --min-np) has no shared weights: they lie with one rank. "
            "Use ringar.DistributedOptimizer there."
        )
    if any(cut_of(variable) is not None for variable in variables):
        raise UnsupportedError(
            "A model whose layers are cut has no shared weights: ranks hold parts of it. Use "
            "ringar.DistributedOptimizer(..., grid=grid) there."
        )
    for variable in variables:
        if variable.dtype not in DTYPES:
            raise UnsupportedError(
                f"ringar.Hogwild expected weights of {', '.join(DTYPES)}, received "
                f"{variable.path!r} of {variable.dtype}: use a dtype policy such as "
                '"mixed_bfloat16", whose weights are float32.'
            )
    accumulates = getattr(optimizer, "gradient_accumulation_steps", None)
    if accumulates and any(map(is_table, variables)):
        raise UnsupportedError(
            "ringar.Hogwild expected an optimizer without gradient_accumulation_steps beside a "
            f"ringar.layers.HogwildEmbedding, received {accumulates}: a step would change rows of "
            "former batches. Use larger batches, or keras.layers.Embedding."
        )


def _check_alone(optimizer: Any, variables: Sequence[Any]) -> None:
    """Refuse steps whose changes of several ranks cannot be added."""
    refuse_overwritten("ringar.Hogwild", variables)
    constrained = [v.path for v in variables if getattr(v, "constraint", None) is not None]
    if constrained:
        raise UnsupportedError(
            f"ringar.Hogwild expected weights without a constraint, received {constrained[0]!r}: "
            "changes of several ranks add up to values beyond it. Use ringar.LocalSGD, or a "
            "ringar.ParameterServer."
        )
    if any(part.use_ema and part.ema_overwrite_frequency for part in slots.with_nested(optimizer)):
        raise UnsupportedError(
            "ringar.Hogwild expected ema_overwrite_frequency=None, received a number: ranks would "
            "add their way to the average several times. `use_ema` alone is averaged at the end of "
            "an epoch."
        )
