"""Descriptions of the user's settings, which must be the same on all ranks: plain, stable values.

Ranks of one script describe themselves alike: a description leaves out addresses, numbers in names,
learning rates and seeds, in which ranks may differ. Objects are described by class and config,
functions by name and code.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import warnings
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from ringar.collectives.digest import digest
from ringar.keras import share
from ringar.sharding.cut import cut_of
from ringar.sharding.slots import inner_optimizer

if TYPE_CHECKING:
    from ringar.keras.exchange import Exchange

_FREE = ("name", "learning_rate", "seed", "module", "registered_name", "build_config")
"""Entries of configs in which ranks may differ, or that say nothing."""

_SETTINGS = (
    "weight_decay",
    "clipnorm",
    "global_clipnorm",
    "clipvalue",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
    "loss_scale_factor",
    "gradient_accumulation_steps",
)
"""Settings of all optimizers, also of those whose config cannot be made."""


def plain(value: Any) -> Any:
    """Return the description of a value: numbers, texts, None, lists and dictionaries of them."""
    if isinstance(value, enum.Enum):
        return value.name
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Mapping):
        if "class_name" in value and "config" in value:
            return _described(value["class_name"], value["config"])
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, set | frozenset):
        return sorted(str(plain(part)) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value) if field.init)
        return _described(type(value).__name__, {name: getattr(value, name) for name in names})
    if isinstance(value, tf.Variable | keras.Variable):
        return weight(value)
    if isinstance(value, np.ndarray) or tf.is_tensor(value):
        return _array(value)
    return _object(value)


def optimizer(
    keras_optimizer: keras.optimizers.Optimizer, variables: Sequence[Any] = (), rate: bool = False
) -> dict[str, Any]:
    """Return the description of an optimizer.

    Args:
        keras_optimizer: the optimizer.
        variables: those that it may train, to tell which have no weight decay.
        rate: whether to describe the learning rate; else only whether it is a number or a schedule.
    """
    try:
        with warnings.catch_warnings():  # Keras warns of functions, which it could not load again
            warnings.simplefilter("ignore")
            config = keras_optimizer.get_config()
    except Exception:  # of the user's class, or of a schedule that has no config
        config = {name: getattr(keras_optimizer, name, None) for name in _SETTINGS}
    described: dict[str, Any] = _described(keras_optimizer.__class__.__name__, config)
    inner = inner_optimizer(keras_optimizer)
    schedule = getattr(inner, "_learning_rate", None)
    is_schedule = isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule)
    described["learning_rate"] = "a schedule" if is_schedule else "a number"
    if rate:
        described["learning_rate"] = plain(config.get("learning_rate"))
    described["exclude_from_weight_decay"] = _excluded(inner, variables)
    return described


def loss(argument: Any) -> Any:
    """Return the description of what `compile` got as `loss`, without names of outputs."""
    if isinstance(argument, Mapping) and "class_name" not in argument:
        return [loss(part) for part in argument.values()]
    if isinstance(argument, list | tuple):
        return [loss(part) for part in argument]
    if isinstance(argument, str):
        try:
            return loss(keras.losses.get(argument))
        except ValueError:  # a name that means a loss for some outputs only, "crossentropy"
            return argument
    described = plain(argument)
    if isinstance(argument, keras.losses.Loss):
        described |= plain(getattr(argument, "_fn_kwargs", {}))
    return described


def weight(variable: Any) -> str:
    """Return the dtype of a variable, its shape as far as ranks have it in common, and its use."""
    cut, shape = cut_of(variable), list(variable.shape)
    uneven = () if cut is None else cut.uneven
    sizes = ["*" if axis in uneven else size for axis, size in enumerate(shape)]
    use = "trained" if variable.trainable else "not trained"
    return f"{variable.dtype}[{', '.join(map(str, sizes))}], {use}"


def exchanges(items: Sequence[Exchange]) -> Any:
    """Return the description of the exchanges of a model's optimizers."""
    described = [plain(exchange.description) for exchange in items]
    return described[0] if len(described) == 1 else described


def loop(
    variables: Sequence[Any], exchange: Exchange, keras_optimizer: keras.optimizers.Optimizer | None
) -> dict[str, Any]:
    """Return the description of a loop of steps, as far as a step knows it.

    Args:
        variables: those whose gradients are reduced.
        exchange: that of the optimizer or the tape.
        keras_optimizer: the optimizer, if it is known.
    """
    return {
        "exchange": exchanges([exchange]),
        "optimizer": {} if keras_optimizer is None else optimizer(keras_optimizer, variables),
        **weights(variables),
    }


def model(keras_model: keras.Model, step_exchanges: Sequence[Exchange] = ()) -> dict[str, Any]:
    """Return the description of a compiled model.

    Args:
        keras_model: the model.
        step_exchanges: the exchanges of a step, where those of the optimizers are not all.
    """
    items = [*step_exchanges] or share.exchanges_of(keras_model)
    meets = all(exchange.period.meets for exchange in items)
    optimizers = share.optimizers_of(keras_model) if meets else []
    described = [optimizer(part, keras_model.trainable_variables) for part in optimizers]
    return {
        "exchange": exchanges(items),
        "optimizer": described[0] if len(described) == 1 else described,
        "loss": loss(getattr(keras_model, "loss", None)),
        "loss_weights": _loss_weights(keras_model),
        "dtype_policy": policies(keras_model),
        **weights(keras_model.weights),
    }


def weights(variables: Sequence[Any]) -> dict[str, Any]:
    """Return the description of a model's weights."""
    descriptions = {f"weight {place}": weight(variable) for place, variable in enumerate(variables)}
    return {"number of weights": len(variables), **descriptions}


def policies(model: keras.Model) -> Any:
    """Return the dtype policies of the layers that have weights; one for all, if they are alike."""
    names = [
        getattr(getattr(layer, "dtype_policy", None), "name", None)
        for layer in model._flatten_layers()
        if layer.weights
    ]
    return names if len(set(names)) > 1 else next(iter(names), None)


def _described(kind: Any, config: Any) -> Any:
    if kind == "__lambda__":  # Keras' pickle of it has the path of the script
        return "a lambda"
    if not isinstance(config, Mapping):  # a function, by Keras' name
        return f"{kind} {plain(config)}"
    return {"class": kind, **plain({k: setting for k, setting in config.items() if k not in _FREE})}


def _loss_weights(model: keras.Model) -> Any:
    weights = getattr(getattr(model, "_compile_loss", None), "_user_loss_weights", None)
    return plain(list(weights.values()) if isinstance(weights, Mapping) else weights)


def _excluded(keras_optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]) -> list[int]:
    """Return the places of the variables without weight decay."""
    decays = getattr(keras_optimizer, "_use_weight_decay", None)
    if decays is None or not getattr(keras_optimizer, "weight_decay", None):
        return []
    return [place for place, variable in enumerate(variables) if not decays(variable)]


def _object(value: Any) -> Any:
    if isinstance(value, functools.partial):
        return {"partial": plain(value.func), "args": plain(value.args), **plain(value.keywords)}
    if isinstance(value, types.MethodType):
        return plain(value.__func__)
    if isinstance(value, types.FunctionType):
        return f"{value.__qualname__} (code {_code(value.__code__):08x})"
    if hasattr(value, "python_function"):  # a tf.function
        return plain(value.python_function)
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, keras.DTypePolicy | tf.DType | np.dtype):
        return value.name
    try:
        return _described(type(value).__name__, value.get_config())
    except Exception:  # it has none, or none that can be made
        return type(value).__name__


def _code(code: types.CodeType) -> int:
    """Return a digest of the code of a function."""
    constants = [
        _code(constant) if isinstance(constant, types.CodeType) else constant
        for constant in code.co_consts
        if isinstance(constant, types.CodeType | int | float | str)
    ]
    return zlib.crc32(code.co_code + repr((constants, code.co_names)).encode())


def _array(value: Any) -> str:
    try:
        array = np.asarray(value)
    except Exception:  # a tensor of a graph, or one that NumPy does not know
        return f"{value.dtype}{value.shape}"
    if array.ndim == 0 and array.dtype.kind in "biuf":
        return str(array)
    mark = "" if array.dtype.kind in "OSU" else f", digest {digest([array]):08x}"
    return f"{array.dtype}{list(array.shape)}{mark}"
