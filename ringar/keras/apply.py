"""The `apply` of a distributed optimizer, and the class that has it.

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
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from ringar import hooks
from ringar.collectives.branches import act_if
from ringar.keras import first_step
from ringar.keras.exchange import Exchange
from ringar.keras.zero import slot_files
from ringar.sharding.slots import inner_optimizer
from ringar.sharding.variable_slice import wholes

Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices | None"
"""The gradient by one variable; None if the loss does not depend on it."""


class _Step:
    """Hold whether the optimizer takes the current step; None: it takes every step."""

    def __init__(self, is_due: tf.Tensor | None) -> None:
        self.is_due = is_due


class DistributedMixin:
    """Exchange with the other ranks before the base class applies gradients, and after it."""

    _exchange: Exchange
    _exchange_step: _Step | None

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
        if self._exchange.period.meets:
            first_step.begin(variables, self._exchange, self)
        self._exchange.build(self, variables)
        return self._exchange.reduction(grads, variables, loss_scale)

    def apply(
        self,
        grads: Sequence[Gradient],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> None:
        """Reduce `grads` over the ranks, then apply them as the base class does."""
        if self._exchange_step is not None:  # a `LossScaleOptimizer` has reduced them
            self._take(grads, trainable_variables)
            return
        with self._shared_step(self, grads, trainable_variables) as reduced:
            self._take(reduced, trainable_variables)

    @contextmanager
    def _shared_step(
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
        exchange, loss_scale = self._exchange, _loss_scale(holder)
        exchange.reduction.note_holder(holder)
        reduced = self.reduce(grads, trainable_variables, loss_scale)
        variables = self._variables_of(trainable_variables)
        is_due = exchange.period.begin_step(reduced, variables, loss_scale)
        # Bypass Keras' __setattr__, which tracks attributes.
        object.__setattr__(self, "_exchange_step", _Step(is_due))
        try:
            yield reduced
        finally:
            object.__setattr__(self, "_exchange_step", None)
        # After the end of its iterator a graph runs what does not depend on the batch: no count.
        tensors = [g.values if isinstance(g, tf.IndexedSlices) else g for g in reduced]
        with tf.control_dependencies([tensor for tensor in tensors if tensor is not None]):
            exchange.period.end_step()

    def _take(
        self,
        grads: Sequence[Gradient],
        trainable_variables: Sequence[keras.Variable] | None,
    ) -> None:
        """Take a step as the base class does, if it is due; else count it."""
        assert self._exchange_step is not None
        exchange, is_due = self._exchange, self._exchange_step.is_due
        variables = self._variables_of(trainable_variables)
        grads = exchange.reduction.clip(self, grads, variables)
        parts = trainable_variables
        if trainable_variables is not None:
            parts = exchange.slices.parts(trainable_variables)
        take = functools.partial(super().apply, grads, parts)  # type: ignore[misc]  # a mixin
        with exchange.reduction.behind_start():
            if is_due is None:
                take()
            else:
                # Learning rates follow the count.
                count = functools.partial(self.iterations.assign_add, 1)  # type: ignore[attr-defined]
                act_if(is_due, take, count)
        exchange.slices.constrain(grads, variables)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Make the slots for this rank's parts of `variables`."""
        super().build(self._exchange.slices.parts(variables))  # type: ignore[misc]

    def add_variable_from_reference(
        self,
        reference_variable: keras.Variable,
        name: str | None = None,
        initializer: str | keras.initializers.Initializer = "zeros",
    ) -> keras.Variable:
        """Make a slot as the base class does, or where slots are offloaded to."""
        slot: keras.Variable
        offload = self._exchange.slices.offload
        if offload is None:
            make = super().add_variable_from_reference  # type: ignore[misc]
            slot = make(reference_variable, name, initializer)
        else:
            slot = offload.slot(reference_variable, name or "slot", initializer)
            self._track_variable(slot)  # type: ignore[attr-defined]  # a mixin
        return slot

    def save_own_variables(self, store: Any) -> None:
        """Save as the base class does, with whole slots."""
        slot_files.save(self, store, super().save_own_variables)  # type: ignore[misc]

    def load_own_variables(self, store: Any) -> None:
        """Load as the base class does, but of the slots only this rank's slices."""
        slot_files.load(self, store, super().load_own_variables)  # type: ignore[misc]

    # Steps of Keras' own `apply`, in the branches of gradient accumulation and of averages.

    def _clip_gradients(self, grads: Sequence[Gradient]) -> list[Gradient]:
        clip = super()._clip_gradients  # type: ignore[misc]
        return self._exchange.slices.clip(self, grads, clip)

    def _backend_update_step(self, *args: Any, **kwargs: Any) -> None:
        super()._backend_update_step(*args, **kwargs)  # type: ignore[misc]
        self._exchange.slices.publish()

    def _overwrite_model_variables_with_average_value(
        self, trainable_variables: Sequence[keras.Variable]
    ) -> None:
        parts = self._exchange.slices.parts(trainable_variables)
        super()._overwrite_model_variables_with_average_value(parts)  # type: ignore[misc]
        self._exchange.slices.publish()

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
        return make_distributed(make(*arguments), self._exchange.twin())

    def __copy__(self) -> keras.optimizers.Optimizer:
        """Copy as `copy.deepcopy` does: Keras' optimizers have no shallow copies."""
        return self.__deepcopy__({})


def make_distributed(optimizer: Any, exchange: Exchange) -> Any:
    """Give an optimizer an exchange, and the class of a distributed one; return it."""
    # Bypass Keras' __setattr__, which tracks attributes.
    object.__setattr__(optimizer, "_exchange", exchange)
    object.__setattr__(optimizer, "_exchange_step", None)
    object.__setattr__(optimizer, "__class__", _distributed_class(type(optimizer)))
    return optimizer


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
        exchange = optimizer._exchange.twin()
        return lambda *args, **kwargs: make_distributed(plain(*args, **kwargs), exchange)


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
        with inner._shared_step(self, grads, trainable_variables) as reduced:
            original(self, reduced, trainable_variables)

    return apply
