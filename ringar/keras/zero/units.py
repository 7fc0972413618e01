"""The units of gathering: the weights of a layer that is called, or of a named group."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import stateless_scope  # in no public place
from tensorflow.python.eager import record as tape_record

from ringar import hooks
from ringar.collectives import broadcast
from ringar.errors import UnsupportedError
from ringar.job import place
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import share
from ringar.keras.exchange import exchange_of
from ringar.keras.reduction import is_overwritten
from ringar.keras.zero import graphs, passes, weight_slice
from ringar.keras.zero.gathering import Unit
from ringar.keras.zero.session import SESSION, Call, Phase
from ringar.keras.zero.weight_slice import (
    WeightSlice,
    is_of_keras,
    is_sharded,
    slice_of,
    weight_in_sight,
    whole_value,
)

_GROUP = "_ringar_group"
OUTSIDE = "value of a sharded weight (read it on every rank)"
"""The name of the collective that reads a weight outside of a step."""


def gather_together(*layers: keras.layers.Layer) -> None:
    """Gather the weights of some layers in one collective, where weights are sharded.

    By default a rank gathers the weights of each layer that a model calls, with the layers inside
    it. Name larger groups where layers are small, and smaller ones inside a large layer of yours.

    Args:
        *layers: layers that a model calls one after the other; or one model or layer inside
            another, which then is gathered as one.

    Example:
    ```python
    for block in blocks:
        ringar.gather_together(block.norm, block.attention, block.dense)
    ```
    """
    for layer in layers:
        object.__setattr__(layer, _GROUP, layers)  # unseen by Keras' tracking


@contextmanager
def sharded_weights(process_set: ProcessSet | None = None) -> Iterator[None]:
    """Return a context in which each new trained weight is sharded as soon as it is made.

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
    with SESSION.within(cut=functools.partial(cut, process_set=process_set)):
        yield


def cut(variable: Any, process_set: ProcessSet | None) -> WeightSlice:
    """Keep this rank's slice of a variable, with the value of the first rank. Collective, once."""
    ranks = or_all(process_set)
    if is_sharded(variable):
        part = slice_of(variable)
        if or_all(part.process_set).ranks != ranks.ranks:
            raise ValueError(
                f"rank {place.rank()} | {part.path}: expected the ranks over which it is sharded "
                f"already, {or_all(part.process_set).ranks}, received {ranks.ranks}"
            )
        return part
    if not tf.executing_eagerly():
        raise UnsupportedError(
            f"rank {place.rank()} | {variable.path}: expected a weight that was sharded before a "
            "step is traced, received a whole one; call "
            "optimizer.build(model.trainable_variables) on every rank first"
        )
    install()
    value = tf.convert_to_tensor(variable)
    name = "weights/first"
    variable.assign(broadcast(value, ranks.ranks[0], name=name, process_set=process_set))
    del value
    return WeightSlice(variable, process_set, _read)


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
        for variable, part in zip(sharded, map(slice_of, sharded), strict=True):
            weight_slice.make_whole(variable, whole_value(part.storage, part, OUTSIDE))


def _read(variable: Any) -> tf.Tensor:
    """Return the whole value of a sharded variable, in the dtype that it has here."""
    weight, part = weight_in_sight(variable), slice_of(variable)
    dtype = tf.as_dtype(variable.dtype)  # in a layer of mixed precision, that of its computations
    if weight is not None and weight.dtype in (dtype, part.storage.dtype):
        weight.announce()
        return tf.cast(weight.handle, dtype)
    if SESSION.phase is Phase.IDLE:
        return tf.cast(tf.convert_to_tensor(whole_value(part.storage, part, OUTSIDE)), dtype)
    trainer = part.trainer if variable.trainable else None
    unit = Unit(passes.current(trainer, part.process_set), [variable], [part.storage.dtype])
    return tf.cast(unit.weights[id(variable)].handle, dtype)


def _dtype_of(layer: keras.layers.Layer, variable: Any) -> tf.DType:
    """Return the dtype in which a layer reads one of its variables."""
    dtype = slice_of(variable).storage.dtype
    computes = keras.backend.is_float_dtype(layer.compute_dtype)
    casts = layer.autocast and getattr(variable, "_autocast", True) and dtype.is_floating
    return tf.as_dtype(layer.compute_dtype) if casts and computes else dtype


def most_gathered(model: keras.Model, bytes_of: Callable[[Any], int]) -> int:
    """Return the most bytes of trained weights in two successive units, in the layers' order.

    Args:
        model: a built model, sharded or not.
        bytes_of: returns the bytes of a variable.
    """
    sizes = []
    groups: set[int] = set()
    for layer in _callable_layers(model):
        group = getattr(layer, _GROUP, None)
        layers = [layer] if group is None else group
        if group is not None and id(group) in groups:
            continue
        groups.add(id(group))
        variables = {id(v): v for inner in layers for v in inner.trainable_variables}
        sizes.append(sum(map(bytes_of, variables.values())))
    return max((sum(sizes[i : i + 2]) for i in range(len(sizes))), default=0)


def _callable_layers(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """Yield the layers that a model and the models in it call, as far as they have weights."""
    for layer in model._layers:
        if isinstance(layer, keras.Model) and getattr(layer, _GROUP, None) is None:
            yield from _callable_layers(layer)
        elif layer.trainable_variables:
            yield layer


def _sharded_in(
    layers: Sequence[keras.layers.Layer], group: Any
) -> dict[int, tuple[Any, tf.DType]]:
    """Return sharded variables of layers, by identity, without those of other groups."""
    variables: dict[int, tuple[Any, tf.DType]] = {}
    for layer in layers:
        for variable in [*layer._trainable_variables, *layer._non_trainable_variables]:
            if is_sharded(variable):
                dtype = _dtype_of(layer, variable)
                # Layers of different dtypes may share it.
                if variables.get(id(variable), (None, dtype))[1] != dtype:
                    dtype = slice_of(variable).storage.dtype
                variables[id(variable)] = variable, dtype
        inner = [child for child in layer._layers if getattr(child, _GROUP, group) is group]
        for key, entry in _sharded_in(inner, group).items():
            variables.setdefault(key, entry)
    return variables


def _unit_of(layer: keras.layers.Layer, tensors: Sequence[Any]) -> Unit | None:
    """Return the unit that a call of `layer` needs; None: there is one, or it is no unit."""
    group = getattr(layer, _GROUP, None)
    if group is None and (SESSION.scope.weights is not None or isinstance(layer, keras.Model)):
        return None
    sharded = _sharded_in([layer] if group is None else group, group)
    if not sharded:
        return None
    variables = [variable for variable, _ in sharded.values()]
    slices = [slice_of(variable) for variable in variables]
    trainers = [part.trainer for v, part in zip(variables, slices, strict=True) if v.trainable]
    trainer = next((trainer for trainer in trainers if trainer is not None), None)
    pass_ = passes.current(trainer, slices[0].process_set)
    if (unit := pass_.groups.get(id(group))) is not None:
        unit.calls_left -= 1
        if not unit.calls_left:
            del pass_.groups[id(group)]
        return unit
    has_parts = group is not None or bool(layer._layers)
    watched = tape_record.should_record_backprop([t for t in tensors if t.dtype.is_floating])
    unit = Unit(
        pass_, variables, [dtype for _, dtype in sharded.values()], tensors,
        is_called=True, is_watched=watched, reaches_back=has_parts or watched,
    )  # fmt: skip
    if group is not None and len(group) > 1:
        unit.calls_left = len(group) - 1
        pass_.groups[id(group)] = unit
    return unit


def _tensors_in(values: Any) -> list[Any] | None:
    """Return the tensors in the arguments of a call; None if they are symbolic."""
    flat = tf.nest.flatten(values)
    if any(isinstance(value, keras.KerasTensor) for value in flat):
        return None
    tensors = [value for value in flat if tf.is_tensor(value) and not is_of_keras(value)]
    return list(tf.nest.flatten(tensors, expand_composites=True))


def gathering(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let a layer gather its weights for a call."""

    def call(self: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        tensors = _tensors_in((args, kwargs))
        if tensors is None or stateless_scope.in_stateless_scope():
            return original(self, *args, **kwargs)
        outermost = SESSION.scope.call or Call(tensors, graphs.graph())
        with SESSION.within(call=outermost):
            unit = _unit_of(self, tensors)
            if unit is None:
                return original(self, *args, **kwargs)
            with SESSION.within(weights={**(SESSION.scope.weights or {}), **unit.weights}):
                outputs = original(self, *args, **kwargs)
            return tf.nest.map_structure(unit.leave, outputs)

    return call


def cutting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Cut the weights that layers add in `sharded_weights`."""

    def add_weight(self: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        variable = original(self, *args, **kwargs)
        is_trained = variable.trainable and not is_overwritten(variable)
        cut_new = SESSION.scope.cut
        if cut_new is not None and is_trained and not stateless_scope.in_stateless_scope():
            cut_new(variable)
        return variable

    return add_weight


def training_whole_weights(make: Callable[..., Any]) -> Callable[..., Any]:
    """Make weights whole again for a model that trains without slices."""

    def make_train_function(self: Any, force: bool = False) -> Any:
        trainers = [slice_of(v).trainer for v in self.trainable_variables if is_sharded(v)]
        reductions = (exchange.reduction for exchange in share.exchanges_of(self))
        if trainers and not any(isinstance(r, passes.Trainer) for r in reductions):
            make_whole(self.weights)
        return make(self, force)

    return make_train_function


def building_whole_weights(build: Callable[..., Any]) -> Callable[..., Any]:
    """Make weights whole again for an optimizer that knows no slices."""

    def build_whole(self: Any, variables: Any) -> None:
        exchange = exchange_of(self)  # a `LossScaleOptimizer` may hold the one that has slices
        if exchange is None or not isinstance(exchange.reduction, passes.Trainer):
            make_whole([variable for variable in variables if is_sharded(variable)])
        build(self, variables)

    return build_whole


def install() -> None:
    """Let the layers of Keras gather their weights, and Keras save them."""
    hooks.install('shard="weights"')
    hooks.install("files of sharded models")
