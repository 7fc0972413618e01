"""Which weights are gathered together: those of a layer that is called, or of a named group."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from tensorflow.python.eager import record as tape_record

from ringar import hooks
from ringar.collectives import broadcast
from ringar.collectives.allgather import allgather
from ringar.errors import UnsupportedError
from ringar.job import place
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import passes, share
from ringar.keras.gathering import Unit
from ringar.keras.variable_slices import is_overwritten
from ringar.sharding.sharded_variable import (
    WeightSlice,
    is_of_keras,
    is_sharded,
    leader,
    numpy_of,
    slice_of,
    visible,
)
from ringar.sharding.sharded_variable import make_whole as whole_variable

_GROUP = "_ringar_group"
OUTSIDE = "value of a sharded weight (read it on every rank)"
"""The name of the collective that reads a weight outside of a step."""


class _Creation(NamedTuple):
    process_set: ProcessSet | None


_creates: ContextVar[_Creation | None] = ContextVar("creates", default=None)


class _Group:
    """Hold layers that are gathered together; the last of them that is called drops the weights."""

    def __init__(self, layers: Sequence[keras.layers.Layer]) -> None:
        self.layers = list(layers)


def gather_together(*layers: keras.layers.Layer) -> None:
    """Gather the weights of some layers in one collective, where weights are sharded.

    By default a rank gathers the weights of each layer that a model calls, with the layers inside
    it. Name larger groups where layers are small, and smaller ones inside a large layer of yours.

    Args:
        *layers: layers that a model calls one behind the other; or one model or layer inside
            another, which then is gathered as one.

    Example:
    ```python
    for block in blocks:
        ringar.gather_together(block.norm, block.attention, block.dense)
    ```
    """
    group = _Group(layers)
    for layer in layers:
        object.__setattr__(layer, _GROUP, group)  # unseen by Keras' tracking


@contextmanager
def sharded_weights(process_set: ProcessSet | None = None) -> Iterator[None]:
    """Return a context in which each new weight that is trained is sharded as soon as it is there.

    It is for models that one rank cannot hold: train them with
    `ringar.DistributedOptimizer(optimizer, shard="weights")`. A rank never holds more than one
    whole weight. Values are those of the first rank. Collective: every rank makes the same model.

    Args:
        process_set: the ranks that train together; by default all.

    Example:
    ```python
    with ringar.sharded_weights():
        model = keras.Sequential([keras.Input((784,)), keras.layers.Dense(10)])
    ```
    """
    if or_all(process_set).size() == 1:
        yield
        return
    install()
    token = _creates.set(_Creation(process_set))
    try:
        yield
    finally:
        _creates.reset(token)


def cut(variable: Any, process_set: ProcessSet | None) -> WeightSlice:
    """Keep this rank's slice of a variable, with the value of the first rank. Collective, once."""
    ranks = or_all(process_set)
    if is_sharded(variable):
        its = slice_of(variable)
        if or_all(its.process_set).ranks != ranks.ranks:
            raise ValueError(
                f"rank {place.rank()} | {its.path}: expected the ranks over which it is sharded "
                f"already, {or_all(its.process_set).ranks}, received {ranks.ranks}"
            )
        return its
    if not tf.executing_eagerly():
        raise UnsupportedError(
            f"rank {place.rank()} | {variable.path}: expected a weight that was sharded before a "
            "step is traced, received a whole one; call "
            "optimizer.build(model.trainable_variables) on every rank first"
        )
    install()
    whole = tf.convert_to_tensor(variable)
    name = "weights/first"
    variable.assign(broadcast(whole, ranks.ranks[0], name=name, process_set=process_set))
    del whole
    return WeightSlice(variable, process_set, functools.partial(_read, process_set=process_set))


def make_whole(variables: Sequence[Any]) -> None:
    """Give weights that another optimizer is to train their whole storage back. Collective.

    Raises:
        UnsupportedError: no optimizer has trained them as slices; perhaps no rank can hold them.
    """
    sharded = [variable for variable in variables if is_sharded(variable)]
    if sharded and all(slice_of(variable).trainer is None for variable in sharded):
        raise UnsupportedError(
            f"rank {place.rank()} | {sharded[0].path}: expected an optimizer that trains weights "
            'that are sharded, ringar.DistributedOptimizer(optimizer, shard="weights"), '
            "received another; use that, or make the model outside ringar.sharded_weights()"
        )
    with tf.init_scope():
        for variable in sharded:
            whole_variable(variable, outside(variable, slice_of(variable).process_set))


def _read(variable: Any, process_set: ProcessSet | None) -> tf.Tensor:
    """Return the whole value of a sharded variable, in the dtype that it has here."""
    seen = (visible.get() or {}).get(id(variable))
    wanted = tf.as_dtype(variable.dtype)  # in a layer of mixed precision, that of its computations
    its = slice_of(variable)
    if seen is not None and seen.dtype in (wanted, its.storage.dtype):
        seen.announce()
        return tf.cast(seen.handle, wanted)
    if passes.is_outside():
        return tf.cast(tf.convert_to_tensor(outside(variable, process_set)), wanted)
    its_pass = passes.current(its.trainer if variable.trainable else None, process_set)
    unit = Unit(its_pass, [variable], [its.storage.dtype])
    return tf.cast(unit.visible[id(variable)].handle, wanted)


def outside(variable: Any, process_set: ProcessSet | None) -> Any:
    """Return the whole value of a sharded variable, outside of all steps. Collective."""
    its, leads = slice_of(variable), leader.get()
    if leads is not None:
        return leads.gather(its.storage, its)
    whole = allgather(numpy_of(variable), name=OUTSIDE, process_set=process_set)
    return whole.reshape([int(d) for d in its.whole.shape])


def _dtype_of(layer: keras.layers.Layer, variable: Any) -> tf.DType:
    """Return the dtype in which a layer reads one of its variables."""
    own = slice_of(variable).storage.dtype
    computes = keras.backend.is_float_dtype(layer.compute_dtype)
    casts = layer.autocast and getattr(variable, "_autocast", True) and own.is_floating
    return tf.as_dtype(layer.compute_dtype) if casts and computes else own


def most_gathered(model: keras.Model) -> int:
    """Return the most bytes of trained weights in two units behind each other, as layers lie.

    Args:
        model: a built model, sharded or not.
    """
    sizes = []
    seen: set[Any] = set()
    for layer in _callable_layers(model):
        group = getattr(layer, _GROUP, None)
        inside = [layer] if group is None else group.layers
        if group is not None and group in seen:
            continue
        seen.add(group)
        own = {id(v): v for one in inside for v in one.trainable_variables}
        sizes.append(sum(_bytes_of(v) for v in own.values()))
    return max((sum(sizes[i : i + 2]) for i in range(len(sizes))), default=0)


def _callable_layers(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """Yield the layers that a model and the models in it call, as far as they have weights."""
    for layer in model._layers:
        if isinstance(layer, keras.Model) and getattr(layer, _GROUP, None) is None:
            yield from _callable_layers(layer)
        elif layer.trainable_variables:
            yield layer


def _bytes_of(variable: Any) -> int:
    item = tf.as_dtype(keras.backend.standardize_dtype(variable.dtype)).size
    return math.prod(int(d) for d in variable.shape) * int(item)


def _found(layers: Sequence[keras.layers.Layer], group: Any) -> dict[int, tuple[Any, tf.DType]]:
    """Return sharded variables of layers, by identity, without those of other groups."""
    found: dict[int, tuple[Any, tf.DType]] = {}
    for layer in layers:
        for variable in [*layer._trainable_variables, *layer._non_trainable_variables]:
            if is_sharded(variable):
                dtype = _dtype_of(layer, variable)
                # Layers of different dtypes may share it.
                known = found.get(id(variable), (None, dtype))[1]
                own = slice_of(variable).storage.dtype
                found[id(variable)] = variable, dtype if known == dtype else own
        inner = [one for one in layer._layers if getattr(one, _GROUP, group) is group]
        found |= {k: v for k, v in _found(inner, group).items() if k not in found}
    return found


def _unit_of(layer: keras.layers.Layer, tensors: Sequence[Any]) -> Unit | None:
    """Return the unit that a call of `layer` needs; None: there is one, or it is no unit."""
    group = getattr(layer, _GROUP, None)
    if group is None and (visible.get() is not None or isinstance(layer, keras.Model)):
        return None
    found = _found([layer] if group is None else group.layers, group)
    if not found:
        return None
    variables = [variable for variable, _ in found.values()]
    slices = [slice_of(variable) for variable in variables]
    trainers = [its.trainer for v, its in zip(variables, slices, strict=True) if v.trainable]
    trainer = next((one for one in trainers if one is not None), None)
    its_pass = passes.current(trainer, slices[0].process_set)
    if group is not None and group in its_pass.groups:
        called = its_pass.groups[group]
        called.calls_left -= 1
        if not called.calls_left:
            del its_pass.groups[group]
        return called
    has_parts = group is not None or bool(layer._layers)
    watched = tape_record.should_record_backprop([t for t in tensors if t.dtype.is_floating])
    unit = Unit(
        its_pass, variables, [dtype for _, dtype in found.values()], tensors,
        is_called=True, is_watched=watched, reaches_back=has_parts or watched,
    )  # fmt: skip
    if group is not None and len(group.layers) > 1:
        unit.calls_left = len(group.layers) - 1
        its_pass.groups[group] = unit
    return unit


def _tensors_in(values: Any) -> list[Any] | None:
    """Return the tensors in the arguments of a call; None if they are symbolic."""
    flat = tf.nest.flatten(values)
    if any(isinstance(one, keras.KerasTensor) for one in flat):
        return None
    tensors = [one for one in flat if tf.is_tensor(one) and not is_of_keras(one)]
    return list(tf.nest.flatten(tensors, expand_composites=True))


def gathering(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let a layer gather its weights for a call."""

    @tf.autograph.experimental.do_not_convert
    def call(self: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        tensors = _tensors_in((args, kwargs))
        if tensors is None or _in_stateless_scope():
            return original(self, *args, **kwargs)
        with passes.outermost(tensors):
            unit = _unit_of(self, tensors)
            if unit is None:
                return original(self, *args, **kwargs)
            token = visible.set({**(visible.get() or {}), **unit.visible})
            try:
                outputs = original(self, *args, **kwargs)
            finally:
                visible.reset(token)
            return tf.nest.map_structure(unit.left, outputs)

    return call


def _in_stateless_scope() -> bool:
    from keras.src.backend.common import stateless_scope  # in no public place

    return bool(stateless_scope.in_stateless_scope())


def cutting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Cut the weights that layers add in `sharded_weights`."""

    def add_weight(self: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        variable = original(self, *args, **kwargs)
        creation = _creates.get()
        is_trained = variable.trainable and not is_overwritten(variable)
        if creation is not None and is_trained and not _in_stateless_scope():
            cut(variable, creation.process_set)
        return variable

    return add_weight


def training_whole_weights(make: Callable[..., Any]) -> Callable[..., Any]:
    """Let weights be whole again where a model trains that shards nothing."""

    def make_train_function(self: Any, force: bool = False) -> Any:
        trainers = [slice_of(v).trainer for v in self.trainable_variables if is_sharded(v)]
        reductions = (exchange.reduction for exchange in share.exchanges_of(self))
        if trainers and not any(isinstance(r, passes.Trainer) for r in reductions):
            make_whole(self.weights)
        return make(self, force)

    return make_train_function


def building_whole_weights(build: Callable[..., Any]) -> Callable[..., Any]:
    """Let weights be whole again for an optimizer that knows no slices."""

    def build_whole(self: Any, variables: Any) -> None:
        make_whole([variable for variable in variables if is_sharded(variable)])
        build(self, variables)

    return build_whole


def install() -> None:
    """Let the layers of Keras gather their weights, and Keras save them."""
    hooks.install('shard="weights"')
    hooks.install("files of sharded models")
