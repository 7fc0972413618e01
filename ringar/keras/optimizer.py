"""`DistributedOptimizer`: an optimizer of Keras 3 that reduces its gradients over the ranks first.

Keras' trainers, and `apply_gradients`, all go through `optimizer.apply(grads,
trainable_variables)`, in every release of Keras 3, and it runs before clipping, accumulation,
weight decay and moving averages. The distributed optimizer overrides this one method: it reduces,
then does what its base class does. `global_clipnorm` therefore sees the reduced gradients, and with
`gradient_accumulation_steps` every micro-step is reduced, which is exact.

It is the given object itself, whose class is exchanged for one derived from it. So nothing is lost
that `get_config()` does not know: slots of an optimizer that has been trained, variables excluded
from weight decay, a learning rate schedule that cannot be serialized. Its `__class__` remains that
of the original optimizer, which is what Keras writes into files: a saved model loads where ringar
is not installed, as the optimizer it is.

The float16 trap. Under the dtype policy "mixed_float16" Keras wraps the optimizer in a
`LossScaleOptimizer`, which calls it only if no gradient of this rank overflowed: a rank with an
overflow would skip the collective for which the others wait. A loss-scale optimizer that holds a
distributed optimizer therefore reduces first and looks for overflows then; an overflow of one rank
is one of the sum, and all skip the step. Since Keras makes that wrapper itself, in `compile`, of a
class of its own, `LossScaleOptimizer.apply` is where this has to be put.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from ringar.collectives import Average
from ringar.collectives.compression import Compression
from ringar.errors import NotInitializedError
from ringar.job import place
from ringar.keras import buckets
from ringar.keras.grid_reduction import GridReduction
from ringar.keras.reduction import Reduction
from ringar.sharding.slots import inner_optimizer

_CLASSES: dict[type, type] = {}


class DistributedMixin:
    """Reduce gradients over the ranks before the base class applies them."""

    _reduction: Reduction | GridReduction
    _reduction_is_done: bool

    def reduce(
        self,
        grads: Sequence[Any],
        trainable_variables: Sequence[Any] | None = None,
        loss_scale: Any = None,
    ) -> list[Any]:
        """Return `grads` reduced over the ranks, as `apply` will use them.

        Args:
            grads: as for `apply`.
            trainable_variables: as for `apply`.
            loss_scale: what `grads` were multiplied by, if that changes from step to step.
        """
        return self._reduction(grads, self._variables_of(trainable_variables), loss_scale)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Reduce `grads` over the ranks, then do with them what the base class does."""
        if not self._reduction_is_done:
            grads = self.reduce(grads, trainable_variables, _loss_scale(self))
        if isinstance(self._reduction, GridReduction):
            grads = self._reduction.clip(self, grads, self._variables_of(trainable_variables))
        super().apply(grads, trainable_variables)  # type: ignore[misc]  # the base class has it

    def _variables_of(self, trainable_variables: Sequence[Any] | None) -> Sequence[Any] | None:
        if trainable_variables is not None:
            return list(trainable_variables)
        return getattr(self, "_trainable_variables", None) or None  # empty: not built

    @contextmanager
    def reduction_done(self) -> Iterator[None]:
        """Return a context in which `apply` takes gradients that have been reduced already."""
        self._reduction_is_done = True
        try:
            yield
        finally:
            self._reduction_is_done = False


def DistributedOptimizer(  # the name that Horovod's users know; it makes an object of a class
    optimizer: Any,
    *,
    op: Any = Average,
    compression: Any = Compression.none,
    algorithm: str | None = None,
    process_set: Any = None,
    grid: Any = None,
    bucket_bytes: int = buckets.DEFAULT_BUCKET_BYTES,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    sparse_as_dense: bool = False,
) -> Any:
    """Make `optimizer` reduce its gradients over the ranks before it applies them.

    Compile the model after this call, not before: a training step that was traced earlier stays as
    it was.

    Args:
        optimizer: a `keras.optimizers.Optimizer`, built or not, or the name of one. The object
            itself becomes distributed and keeps its state.
        op: `ringar.Average` or `ringar.Sum`.
        compression: what the gradients travel as. `ringar.Compression.none`; `.fp16` or `.bf16`:
            float32 in that dtype between hosts, and as it is inside a host;
            `.powersgd(rank=2)`: large matrices as two factors of low rank, anywhere, with error
            feedback (`ringar.collectives.powersgd`); its state stays with this object and is not
            saved. On one rank, nothing.
        algorithm: of the allreduces between hosts, as for `ringar.allreduce`.
        process_set: the ranks that train together; by default all.
        grid: a `ringar.parallel.Grid`, for a model with split layers: variables that are cut are
            reduced over the ranks that have the same part, all others over all ranks.
        bucket_bytes: gradients travel together in buckets of at most this many bytes, 8 MiB by
            default; a larger gradient alone.
        prescale_factor: multiplies gradients before they are reduced.
        postscale_factor: multiplies gradients after they were reduced.
        sparse_as_dense: turn the `tf.IndexedSlices` of an Embedding into dense gradients instead of
            gathering the slices of all ranks; faster where most rows are touched. Done in any case
            in steps that XLA compiles for batches of unknown size. It may change the numbers: Keras
            squares slices one by one, in Adam for example, and dense gradients after adding them.

    Returns:
        `optimizer`, whose class is now `Distributed<class>`, a subclass of what it was.

    Raises:
        NotInitializedError: before `ringar.init()`.
        ValueError: if `optimizer` is distributed already, or an argument is out of range.
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "ringar.DistributedOptimizer needs Keras' TensorFlow backend: set the environment "
            f"variable KERAS_BACKEND=tensorflow. Received: {keras.backend.backend()}"
        )
    if not place.is_initialized():
        raise NotInitializedError(
            "ringar.DistributedOptimizer was used before ringar.init(): call ringar.init() first."
        )
    optimizer = keras.optimizers.get(optimizer)
    if is_distributed(optimizer):
        raise ValueError(
            "`optimizer` must not be distributed already: its gradients would be reduced twice. "
            f"Received: {type(optimizer).__name__}"
        )
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
    _reduce_before_overflow_check()
    # Not through Keras' own __setattr__, which would ask the new class for permission.
    on_grid = reduction if grid is None else GridReduction(reduction, grid)
    object.__setattr__(optimizer, "_reduction", on_grid)
    object.__setattr__(optimizer, "_reduction_is_done", False)
    object.__setattr__(optimizer, "__class__", _distributed_class(type(optimizer)))
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Return whether `optimizer`, or the one in a `LossScaleOptimizer`, reduces over the ranks."""
    return isinstance(inner_optimizer(optimizer), DistributedMixin)


def reduction_of(optimizer: Any) -> Reduction | GridReduction | None:
    """Return the reduction of a distributed optimizer, or of the one in a `LossScaleOptimizer`."""
    return getattr(inner_optimizer(optimizer), "_reduction", None)


def grid_of(optimizer: Any) -> Any:
    """Return the grid of a distributed optimizer, or of the one in a `LossScaleOptimizer`."""
    return getattr(reduction_of(optimizer), "grid", None)


def _loss_scale(optimizer: Any) -> Any:
    """Return what a `LossScaleOptimizer` multiplies losses by now; None for other optimizers."""
    # Not yet built, it begins with the first.
    return getattr(optimizer, "dynamic_scale", getattr(optimizer, "initial_scale", None))


def _distributed_class(base: type) -> type:
    if base not in _CLASSES:
        namespace = {
            "__module__": __name__,
            "__doc__": f"{base.__name__} whose gradients are reduced over the ranks first.",
            # Keras serializes by `__class__`.
            "__class__": property(lambda self: base),
        }
        _CLASSES[base] = type(base)(
            f"Distributed{base.__name__}", (DistributedMixin, base), namespace
        )
    return _CLASSES[base]


def _reduce_before_overflow_check() -> None:
    """Make every `LossScaleOptimizer` reduce before it decides whether to take the step."""
    original = keras.optimizers.LossScaleOptimizer.apply
    if hasattr(original, "_ringar"):
        return

    @functools.wraps(original)
    def apply(
        self: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        inner = inner_optimizer(self)
        if not isinstance(inner, DistributedMixin):
            original(self, grads, trainable_variables)
            return
        grads = inner.reduce(grads, trainable_variables, _loss_scale(self))
        with inner.reduction_done():
            original(self, grads, trainable_variables)

    apply._ringar = True  # type: ignore[attr-defined]
    keras.optimizers.LossScaleOptimizer.apply = apply
