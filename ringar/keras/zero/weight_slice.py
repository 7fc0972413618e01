"""A weight of which each rank keeps a slice only, in the form of a variable of Keras.

The variable of a layer gets a derived class: its shape stays the whole one, its storage is a flat
variable of n/N elements (`variable_slice.py` has the cut). Reading it needs the other ranks. So a
reader does it, which is set when the variable is cut. Assigning a whole value keeps this rank's
slice of it. The handle is that of the slice: `tape.gradient(loss, model.trainable_weights)` of
Keras returns gradients of slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import stateless_scope  # in no public place
from tensorflow.python.ops import gen_resource_variable_ops

from ringar import hooks
from ringar.errors import UnsupportedError
from ringar.job import place
from ringar.job.process_sets import ProcessSet
from ringar.keras.zero.session import SESSION
from ringar.sharding.slice_ranks import SliceRanks
from ringar.sharding.variable_slice import VariableSlice
from ringar.sharding.whole import joined

if TYPE_CHECKING:
    from ringar.keras.zero.whole_weight import WholeWeight


class WeightSlice(VariableSlice):
    """Hold this rank's slice of a weight, for an optimizer that trains it.

    The weight's own memory is given back: functions that were traced before cannot read it any
    more, and fail if they do.

    Args:
        variable: a `keras.Variable` with its whole value.
        process_set: the ranks that have the slices; None: all.
        reader: returns the whole value of the variable, in the dtype of its layer.

    Attributes:
        trainer: reduces the gradients of the slice, once an optimizer trains it.
    """

    trainer: Any = None

    def __init__(
        self,
        variable: Any,
        process_set: ProcessSet | None,
        reader: Callable[[Any], tf.Tensor],
    ) -> None:
        super().__init__(variable, SliceRanks(process_set, process_set))
        self.process_set = process_set
        weight = variable.value
        self._name, self._key = str(weight.name), weight._unique_id
        self.reader = reader
        elements = self.of_array(weight.numpy())
        with tf.device(weight.device):
            self._value = tf.Variable(elements, dtype=weight.dtype, name=variable.name)
        nothing = tf.zeros([0], weight.dtype)
        gen_resource_variable_ops.assign_variable_op(weight.handle, nothing, validate_shape=False)
        self.take(variable)

    def take(self, variable: Any) -> None:
        """Make the slice the storage of its variable."""
        variable.__class__ = hooks.derived(type(variable), ShardedMixin, "Sharded")
        variable._value = self._value
        variable._slice = self
        SESSION.storages += 1

    @property
    def storage(self) -> tf.Variable:
        """The variable of the slice, padded."""
        return self._value

    @property
    def name(self) -> str:
        """The weight's name before it was cut."""
        return self._name

    @property
    def _unique_id(self) -> Any:
        return self._key

    def read(self) -> tf.Tensor:
        """Return the elements of the slice."""
        return tf.convert_to_tensor(self._value)

    def assign(self, value: Any) -> None:
        """Set the elements of the slice."""
        self._value.assign(tf.ensure_shape(tf.cast(value, self._value.dtype), self.shape))


class ShardedMixin:
    """A `keras.Variable` whose storage is a slice."""

    _slice: WeightSlice

    @property
    def value(self) -> Any:
        """The whole value: that of the gathered layer, or else by a collective."""
        if stateless_scope.in_stateless_scope():
            scope = stateless_scope.get_stateless_scope()
            value = scope.get_current_value(self)
            # Keras asks for shapes only, in a graph that is never run.
            value = (
                tf.zeros(self._slice.variable.shape, self._slice.dtype) if value is None else value
            )
            return self._maybe_autocast(value)  # type: ignore[attr-defined]
        return self._slice.reader(self)

    @property
    def handle(self) -> tf.Tensor:
        """The resource of the slice; in a gathered layer the whole weight, for its tapes."""
        weight = weight_in_sight(self)
        return self._slice.storage.handle if weight is None else weight.handle

    def _direct_assign(self, value: Any) -> None:
        part, leader = self._slice, SESSION.scope.leader
        if weight_in_sight(self) is not None:
            raise UnsupportedError(
                f"rank {place.rank()} | {part.path}: expected a weight that its layer does not "
                "change while it is called, since ranks without data would not, received one that "
                'it assigns, as SpectralNormalization does; use shard="gradients"'
            )
        if leader is not None:
            leader.scatter(part.storage, part, np.asarray(value))
        else:
            part.assign(part.of(tf.reshape(tf.cast(value, part.storage.dtype), [-1])))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} path={self._slice.path}, {self._slice!r}>"


def is_of_keras(variable: Any) -> bool:
    """Return whether something is a variable of Keras."""
    return isinstance(variable, keras.Variable)


def is_sharded(variable: Any) -> bool:
    """Return whether a rank keeps only a slice of a weight."""
    return isinstance(variable, ShardedMixin)


def slice_of(variable: Any) -> WeightSlice:
    """Return this rank's slice of a weight that is sharded."""
    part: WeightSlice = variable._slice
    return part


def weight_in_sight(variable: Any) -> WholeWeight | None:
    """Return the whole weight that the layers which are called have gathered; None: none has."""
    return (SESSION.scope.weights or {}).get(id(variable))


def whole_value(slot: Any, part: VariableSlice, name: str) -> np.ndarray:
    """Return the whole value of a weight or a slot, outside of all steps. Collective.

    Args:
        slot: this rank's slice of it.
        part: the slice of the variable that it belongs to.
        name: the name of the message, unless the first rank asks for the value.
    """
    leader = SESSION.scope.leader
    return joined(slot, part, name) if leader is None else leader.gather(slot, part)


def make_whole(variable: Any, value: Any) -> WeightSlice:
    """Give a sharded weight its whole storage back, and return its slice.

    Args:
        variable: the weight.
        value: its whole value.
    """
    part = slice_of(variable)
    with tf.init_scope(), tf.device(part.storage.device):
        variable.__class__ = type(variable).__bases__[1]
        variable._initialize(value)
    del variable._slice
    SESSION.storages += 1
    return part


@contextmanager
def whole_for_a_moment(variables: Sequence[Any]) -> Iterator[None]:
    """Return a context in which sharded weights are whole, on the rank that leads."""
    sharded = [variable for variable in variables if is_sharded(variable)]
    slices = [make_whole(variable, variable.value) for variable in sharded]
    try:
        yield
    finally:
        for variable, part in zip(sharded, slices, strict=True):
            part.take(variable)
