"""`DistributedOptimizer`: an optimizer of Keras 3 that reduces its gradients over the ranks first.

Keras' trainers, and `apply_gradients`, all go through `optimizer.apply(grads,
trainable_variables)`, in every release of Keras 3, and it runs before clipping, accumulation,
weight decay and moving averages. The distributed optimizer overrides this one method: it reduces
the gradients and calls its base class with the results. `global_clipnorm` therefore sees the
reduced gradients. With `gradient_accumulation_steps` every micro-step is reduced, which is exact.

The distributed optimizer is the given object, whose class is replaced by a subclass. The object
keeps all state that `get_config()` omits: slots of a trained optimizer, variables excluded from
weight decay, a learning rate schedule that cannot be serialized. Its `__class__` remains that of
the original optimizer. Keras writes that class into files, so that a saved model loads where ringar
is not installed.

Loss scaling. Under the dtype policy "mixed_float16" Keras wraps the optimizer in a
`LossScaleOptimizer`, which calls it only if no gradient of this rank overflowed. A rank with an
overflow would skip the collective for which the other ranks wait. A loss-scale optimizer that holds
a distributed optimizer therefore reduces first and checks for overflows afterwards: an overflow on
one rank is an overflow of the sum, and all ranks skip the step. Keras makes the wrapper in
`compile`, from a class of its own, so ringar overrides `LossScaleOptimizer.apply`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import keras

from ringar import hooks
from ringar.collectives import Average
from ringar.collectives.compression import Compression, Compressor
from ringar.collectives.powersgd import PowerSGD
from ringar.errors import NotInitializedError
from ringar.job import place
from ringar.keras import first_step, keras_2, slot_files
from ringar.keras import offload as offloads
from ringar.keras.exchange import Exchange
from ringar.keras.grid_reduction import GridReduction
from ringar.keras.reduction import Reduction
from ringar.keras.sharded import STAGES, Sharded, Stage, check
from ringar.keras.sharded_weights import ShardedWeights
from ringar.sharding import slots
from ringar.sharding.slice_ranks import Slicing
from ringar.sharding.slots import inner_optimizer, with_nested
from ringar.sharding.variable_slice import wholes

if TYPE_CHECKING:
    import os

    import tensorflow as tf

    from ringar.collectives.ops import ReduceOp
    from ringar.job.process_sets import ProcessSet
    from ringar.sharding.grid import Grid
    from ringar.sharding.slice_ranks import ShardRanks

Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices | None"
"""The gradient by one variable; None if the loss does not depend on it."""


class DistributedMixin:
    """Exchange with the other ranks before the base class applies gradients, and after it."""

    _exchange: Exchange
    _is_in_exchange: bool

    def reduce(
        self,
        grads: Sequence[Gradient],
        trainable_variables: Sequence[keras.Variable] | None = None,
        loss_scale: tf.Tensor | None = None,
    ) -> list[Gradient]:
        """Return `grads` as `apply` will use them: reduced over the ranks.

        Args:
            grads: as for `apply`.
            trainable_variables: as for `apply`.
            loss_scale: the factor in `grads`, if it changes from step to step.
        """
        variables = self._variables_of(trainable_variables)
        if self._exchange.meets:
            first_step.begin(variables, self._exchange, self)
        self._exchange.build(self, variables)
        return self._exchange(grads, variables, loss_scale)

    def apply(
        self,
        grads: Sequence[Gradient],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> None:
        """Reduce `grads` over the ranks, then apply them as the base class does."""
        if not self._is_in_exchange:
            with self.exchange(self, grads, trainable_variables) as grads:
                self.apply(grads, trainable_variables)
            return
        variables = self._variables_of(trainable_variables)
        grads = self._exchange.clip(self, grads, variables)
        parts = trainable_variables
        if trainable_variables is not None:
            parts = self._exchange.parts(trainable_variables)
        take = functools.partial(super().apply, grads, parts)  # type: ignore[misc]  # a mixin
        with self._exchange.begun():
            due = self._exchange.is_due()
            if due is None:
                take()
            else:
                self._take_if(due, take)
        self._exchange.applied(grads, variables)

    def _take_if(self, due: tf.Tensor, take: Callable[[], None]) -> None:
        """Take a step if it is due; else count it, as for learning rates that follow the count."""

        def taken() -> int:
            take()
            return 0

        def counted() -> int:
            self.iterations.assign_add(1)  # type: ignore[attr-defined]  # a mixin
            return 0

        keras.ops.cond(due, taken, counted)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Make the slots for what this rank trains of `variables`."""
        super().build(self._exchange.parts(variables))  # type: ignore[misc]

    def add_variable_from_reference(
        self,
        reference_variable: keras.Variable,
        name: str | None = None,
        initializer: str | keras.initializers.Initializer = "zeros",
    ) -> keras.Variable:
        """Make a slot as the base class does, or where the exchange keeps slots."""
        slot = self._exchange.slot(reference_variable, name or "slot", initializer)
        if slot is not None:
            self._track_variable(slot)  # type: ignore[attr-defined]  # a mixin
        else:
            make = super().add_variable_from_reference  # type: ignore[misc]
            slot = make(reference_variable, name, initializer)
        made: keras.Variable = slot
        return made

    def save_own_variables(self, store: Any) -> None:
        """Save as the base class does, with whole slots."""
        slot_files.save(self, store, super().save_own_variables)  # type: ignore[misc]

    def load_own_variables(self, store: Any) -> None:
        """Load as the base class does; of the slots this rank's slices."""
        slot_files.load(self, store, super().load_own_variables)  # type: ignore[misc]

    # Steps of Keras' own `apply`, in the branches of gradient accumulation and of averages.

    def _clip_gradients(self, grads: Sequence[Gradient]) -> list[Gradient]:
        return self._exchange.clipped(self, grads, super()._clip_gradients)  # type: ignore[misc]

    def _backend_update_step(self, *args: Any, **kwargs: Any) -> None:
        super()._backend_update_step(*args, **kwargs)  # type: ignore[misc]
        self._exchange.publish()

    def _overwrite_model_variables_with_average_value(
        self, trainable_variables: Sequence[keras.Variable]
    ) -> None:
        parts = self._exchange.parts(trainable_variables)
        super()._overwrite_model_variables_with_average_value(parts)  # type: ignore[misc]
        self._exchange.publish()

    def _variables_of(
        self, trainable_variables: Sequence[keras.Variable] | None
    ) -> Sequence[keras.Variable] | None:
        if trainable_variables is not None:
            return list(trainable_variables)
        return wholes(getattr(self, "_trainable_variables", ())) or None  # empty: not built

    def __reduce__(self) -> tuple[Callable[..., keras.optimizers.Optimizer], tuple[object, ...]]:
        """Pickle the plain optimizer, as files hold it."""
        make, arguments = keras.optimizers.Optimizer.__reduce__(self)
        return getattr(self.__class__, make.__name__), arguments

    def __deepcopy__(self, memo: dict[int, object]) -> keras.optimizers.Optimizer:
        """Copy as Keras does; the copy is distributed, with an exchange of its own."""
        make, arguments = self.__reduce__()
        return _distributed(make(*arguments), self._exchange.renewed())

    def __copy__(self) -> keras.optimizers.Optimizer:
        """Copy as `copy.deepcopy` does: Keras' optimizers have no shallow copies."""
        return self.__deepcopy__({})

    @contextmanager
    def exchange(
        self,
        holder: keras.optimizers.Optimizer,
        grads: Sequence[Gradient],
        trainable_variables: Sequence[keras.Variable] | None,
    ) -> Iterator[list[Gradient]]:
        """Exchange around the body, which applies the gradients that it gets or skips the step.

        Args:
            holder: this optimizer, or the `LossScaleOptimizer` that holds it; its `apply` runs.
            grads: as for `apply`.
            trainable_variables: as for `apply`.
        """
        self._exchange.applied_by(holder)
        reduced = self.reduce(grads, trainable_variables, _loss_scale(holder))
        self._is_in_exchange = True
        try:
            yield reduced
        finally:
            self._is_in_exchange = False
        self._exchange.after()


def DistributedOptimizer(  # Horovod's name, for a function that returns an object
    optimizer: str | keras.optimizers.Optimizer,
    *,
    op: ReduceOp = Average,
    compression: type[Compressor] | PowerSGD = Compression.none,
    algorithm: str | None = None,
    process_set: ProcessSet | None = None,
    grid: Grid | None = None,
    bucket_bytes: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    sparse_as_dense: bool = False,
    shard: Stage | None = None,
    shard_ranks: ShardRanks | None = None,
    offload: offloads.Kind | None = None,
    offload_folder: str | os.PathLike[str] | None = None,
) -> keras.optimizers.Optimizer:
    """Make `optimizer` reduce its gradients over the ranks before it applies them.

    Compile the model after this call, not before: a training step that was traced earlier stays as
    it was.

    Args:
        optimizer: a `keras.optimizers.Optimizer`, built or not, or the name of one. The object
            itself becomes distributed and keeps its state.
        op: `ringar.Average` or `ringar.Sum`. On a grid both count each model group once.
        compression: the form in which gradients are sent. `ringar.Compression.none`: unchanged.
            `.fp16` or `.bf16`: float32 gradients in that dtype between hosts, unchanged inside a
            host. `.powersgd(rank=2)`: large matrices as two factors of low rank, with error
            feedback (`ringar.collectives.powersgd`); this object holds the state, which is not
            saved. One rank alone compresses nothing.
        algorithm: the algorithm of allreduces between hosts, as for `ringar.allreduce`.
        process_set: the ranks that train together; by default all.
        grid: a `ringar.parallel.Grid`, for a model with split layers: variables that are cut are
            reduced over the ranks that have the same part, all others over all ranks.
        bucket_bytes: the largest size of a bucket of gradients, which one collective reduces. By
            default 8 MiB; between hosts up to 64 MiB where latencies would take a large part of the
            time, as on many hosts. A larger gradient has a bucket of its own.
        prescale_factor: multiplies gradients before the reduction.
        postscale_factor: multiplies gradients after the reduction.
        sparse_as_dense: reduce the `tf.IndexedSlices` of an Embedding as dense gradients instead of
            gathering the slices of all ranks. This is faster where most rows are used, and always
            done in steps that XLA compiles for batches of unknown size. Results are the same: the
            optimizer gets one slice per row, the sum over the batch and the ranks. (A plain
            optimizer of Keras treats each slice by itself: Adam, for example, adds their squares.)
        shard: "optimizer" or "gradients": each rank keeps the optimizer's slots for its slice of
            every variable only, and gets that slice of the reduced gradients (ZeRO,
            docs/sharded.md). "weights": it keeps its slice of the weights only, too, and gathers
            those of a layer while it is called; all ranks then evaluate together. `model.save` and
            `save_weights` then are for all ranks to call, and the first one writes; files hold
            whole slots and weights. On a grid, a variable that is cut over the parts is sliced
            among the ranks that have the same part; not with "weights".
        shard_ranks: "host", with `shard`: slices are those of the ranks of one host, and other
            hosts hold the same. Then the slots take more memory, and only slices of gradients
            travel between hosts. Collective: all ranks of the job call it, each for its own
            `process_set`; all hosts have equally many ranks of a set.
        offload: with `shard`, where a rank's slots are. "memory": in the memory of the host, while
            the model is on a GPU. "disk": in a file, from which a step reads the slots of one
            variable after the other. Not in steps that XLA compiles for another device, and not
            with "weights".
        offload_folder: the folder of that file, on a disk; by default RINGAR_OFFLOAD_FOLDER, or
            that of temporary files. The file has no name, and vanishes with the process.

    Returns:
        `optimizer`, whose class is now `Distributed<class>`, a subclass of its former class. Copies
        by `copy`, and by its `from_config`, are distributed, too. Files, pickles and configs of a
        model hold the plain optimizer, so that they load without ringar.

    Raises:
        NotInitializedError: before `ringar.init()`.
        ValueError: if `optimizer` is distributed already, or an argument is out of range.
    """
    reduction = Reduction(
        op,
        compression,
        algorithm,
        process_set,
        bucket_bytes,
        prescale_factor,
        postscale_factor,
        sparse_as_dense,
    )
    if shard is not None:
        slots_elsewhere = offloads.made(offload, offload_folder)
        return _sharded(optimizer, shard, reduction, grid, shard_ranks, slots_elsewhere)
    given = {"shard_ranks": shard_ranks, "offload": offload, "offload_folder": offload_folder}
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"`{name}` needs `shard`. Received: {name}={value!r}, shard=None. Pass "
                'shard="optimizer", too; on one rank it changes nothing else.'
            )
    exchange = reduction if grid is None else GridReduction(reduction, grid)
    return distribute(optimizer, exchange, "ringar.DistributedOptimizer")


def _sharded(
    optimizer: str | keras.optimizers.Optimizer,
    stage: Stage,
    reduction: Reduction,
    grid: Grid | None,
    shard_ranks: ShardRanks | None,
    offload: offloads.Offload | None,
) -> keras.optimizers.Optimizer:
    if stage not in STAGES:
        raise ValueError(
            '`shard` must be None, "optimizer", "gradients" or "weights". '
            f"Received: shard={stage!r}"
        )
    optimizer = keras_2.optimizer_of(optimizer, "DistributedOptimizer")
    check(optimizer, reduction)
    # In a LossScaleOptimizer the inner one is distributed, as `compile` leaves it.
    inner = inner_optimizer(optimizer)
    exchange: Sharded
    if stage == "weights":
        _check_alone(grid, shard_ranks, offload)
        exchange = ShardedWeights(reduction)
    else:
        slicing = Slicing(reduction.process_set, grid, shard_ranks)
        exchange = Sharded(stage, reduction, slicing, offload)
    distribute(inner, exchange, "ringar.DistributedOptimizer")
    hooks.install("files of sharded models")
    if inner.built:
        make = None if offload is None else offload.slot
        slots.replace(inner, exchange.parts(inner._trainable_variables), make)
    return optimizer


def _check_alone(grid: Grid | None, shard_ranks: object, offload: object) -> None:
    given = {"grid": grid, "shard_ranks": shard_ranks, "offload": offload}
    names = [f"`{name}`" for name, value in given.items() if value is not None]
    if names:
        raise ValueError(
            f'{" and ".join(names)} must be None with shard="weights", whose slices of weights are '
            'those of all ranks and lie in their memory. Use shard="gradients", or leave it out.'
        )


def distribute(
    optimizer: str | keras.optimizers.Optimizer, exchange: Exchange, function: str
) -> keras.optimizers.Optimizer:
    """Give `optimizer` an exchange, and return it.

    Args:
        optimizer: an optimizer of Keras that is not distributed, or the name of one.
        exchange: what its ranks exchange.
        function: what the user has called, for errors.
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"{function} needs Keras' TensorFlow backend: set the environment "
            f"variable KERAS_BACKEND=tensorflow. Received: {keras.backend.backend()}"
        )
    if not place.is_initialized():
        raise NotInitializedError(
            f"{function} was used before ringar.init(): call ringar.init() first."
        )
    optimizer = keras_2.optimizer_of(optimizer, "DistributedOptimizer")
    if any(isinstance(one, DistributedMixin) for one in with_nested(optimizer)):
        raise ValueError(
            "`optimizer` must not be distributed already: its gradients would be reduced twice. "
            f"Received: {type(optimizer).__name__}"
        )
    hooks.install("distributed training")
    hooks.install("callbacks of several ranks")
    return _distributed(optimizer, exchange)


def _distributed(optimizer: Any, exchange: Exchange) -> Any:
    # Bypass Keras' __setattr__, which tracks attributes.
    object.__setattr__(optimizer, "_exchange", exchange)
    object.__setattr__(optimizer, "_is_in_exchange", False)
    object.__setattr__(optimizer, "__class__", _distributed_class(type(optimizer)))
    return optimizer


def is_distributed(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether `optimizer`, or the one in a `LossScaleOptimizer`, is distributed."""
    return exchange_of(optimizer) is not None


def exchange_of(optimizer: keras.optimizers.Optimizer) -> Exchange | None:
    """Return the exchange of a distributed optimizer, or of the one in a `LossScaleOptimizer`."""
    # A `LossScaleOptimizer` may be distributed itself.
    holders = (optimizer, inner_optimizer(optimizer))
    return next((o._exchange for o in holders if isinstance(o, DistributedMixin)), None)


def build_exchange(optimizer: keras.optimizers.Optimizer) -> None:
    """Make the state of the exchange of a built optimizer, if it is distributed."""
    inner = inner_optimizer(optimizer)
    if isinstance(inner, DistributedMixin):
        inner._exchange.build(inner, inner._variables_of(None))


def grid_of(optimizer: keras.optimizers.Optimizer) -> Grid | None:
    """Return the grid of a distributed optimizer, or of the one in a `LossScaleOptimizer`."""
    return getattr(exchange_of(optimizer), "grid", None)


def _loss_scale(optimizer: keras.optimizers.Optimizer) -> Any:
    """Return the current factor of a `LossScaleOptimizer`; None for other optimizers."""
    # Before it is built, it has an initial factor only.
    return getattr(optimizer, "dynamic_scale", getattr(optimizer, "initial_scale", None))


class _FromConfig:
    """Make optimizers from configs: distributed as the given object is, plain without an object."""

    def __get__(self, optimizer: DistributedMixin | None, owner: type) -> Callable[..., Any]:
        plain: Callable[..., Any] = owner.__bases__[1].from_config  # type: ignore[attr-defined]
        if optimizer is None:
            return plain
        exchange = optimizer._exchange.renewed()
        return lambda *args, **kwargs: _distributed(plain(*args, **kwargs), exchange)


def _namespace(base: type) -> dict[str, Any]:
    return {
        "__module__": __name__,
        "__doc__": f"{base.__name__} whose gradients are reduced over the ranks first.",
        # Keras serializes by `__class__`.
        "__class__": property(lambda self: base),
        # A new object has no exchange: it is plain.
        "__new__": lambda cls, *args, **kwargs: base(*args, **kwargs),
        "from_config": _FromConfig(),
    }


def _distributed_class(base: type) -> type:
    return hooks.derived(base, DistributedMixin, "Distributed", _namespace)


def exchanging_before_overflow_check(original: Callable[..., None]) -> Callable[..., None]:
    """Let every `LossScaleOptimizer` exchange around its decision whether to take the step."""

    def apply(
        self: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        inner = inner_optimizer(self)
        if not isinstance(inner, DistributedMixin):
            original(self, grads, trainable_variables)
            return
        with inner.exchange(self, grads, trainable_variables) as reduced:
            original(self, reduced, trainable_variables)

    return apply
