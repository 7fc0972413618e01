"""All that ringar replaces in Keras and TensorFlow, in one table.

Most of what ringar does in `fit` has no public place in Keras. So ringar replaces some methods of
its classes, for the whole process, with functions that call the original. A feature needs several
of them. `install` replaces all methods of a feature, the first time that it is used.

Keras and TensorFlow move private attributes. `gaps` lists those that the installed versions lack,
and `install` refuses the feature by its name.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ringar.errors import UnsupportedError
from ringar.job import log

_log = log.logger(__name__)


@dataclass(frozen=True)
class Hook:
    """Describe one replaced attribute.

    Attributes:
        owner: the module or class that has the attribute.
        attribute: its name.
        wrapper: `module:function` in ringar. The function takes the original and returns its
            replacement, which calls the original with the same arguments.
        is_public: whether Keras or TensorFlow documents the attribute.
        is_needed: whether the feature is refused where the attribute is missing.
    """

    owner: str
    attribute: str
    wrapper: str
    is_public: bool = True
    is_needed: bool = True


_MODEL, _SCALED = "keras.Model", "keras.optimizers.LossScaleOptimizer"
_TAPE = "tensorflow.GradientTape"

#: The attributes that each feature replaces, in the order of their replacement.
TABLE: dict[str, tuple[Hook, ...]] = {
    "code of ringar in a tf.function": (
        Hook(
            "tensorflow.python.autograph.impl.conversion", "is_allowlisted",
            "ringar.collectives.autograph:sparing_ringar", is_public=False,
            is_needed=False,
        ),
    ),
    "distributed training": (
        Hook(_SCALED, "apply", "ringar.keras.apply:exchanging_before_overflow_check"),
        Hook(_MODEL, "make_train_function", "ringar.keras.share:observing_steps"),
        Hook(_TAPE, "__enter__", "ringar.keras.loss_rows:beginning"),
        Hook(_TAPE, "__exit__", "ringar.keras.loss_rows:ending"),
        Hook(_TAPE, "gradient", "ringar.keras.loss_rows:computing"),
        Hook(
            "keras.src.losses.loss", "reduce_weighted_values",
            "ringar.keras.loss_parts:noting_parts", is_public=False,
        ),
        Hook("keras.losses.Loss", "__call__", "ringar.keras.losses:of_all_ranks"),
        *(
            Hook(
                f"keras.src.trainers.data_adapters.{adapter}", "get_tf_dataset",
                "ringar.data.epochs:leaving_untuned", is_public=False, is_needed=False,
            )
            for adapter in (
                "array_data_adapter.ArrayDataAdapter",
                "generator_data_adapter.GeneratorDataAdapter",
                "py_dataset_adapter.PyDatasetAdapter",
            )
        ),
        Hook(
            "keras.src.backend.tensorflow.trainer.TFEpochIterator", "__init__",
            "ringar.data.epochs:ending_apart", is_public=False, is_needed=False,
        ),
    ),
    "callbacks of several ranks": (
        Hook(_MODEL, "fit", "ringar.keras.fitting:handing_over"),
        Hook("keras.callbacks.CallbackList", "set_model", "ringar.keras.callback_list:arranging"),
    ),
    "train_on_batch and test_on_batch": (
        Hook(_MODEL, "train_on_batch", "ringar.keras.on_batch:combining"),
        Hook(_MODEL, "test_on_batch", "ringar.keras.on_batch:combining"),
    ),
    "files of sharded models": (
        Hook(_MODEL, "save", "ringar.keras.zero.slot_files:on_all_ranks"),
        Hook(_MODEL, "save_weights", "ringar.keras.zero.slot_files:on_all_ranks"),
        Hook(_MODEL, "export", "ringar.keras.zero.slot_files:exporting"),
        Hook(_SCALED, "save_own_variables", "ringar.keras.zero.slot_files:saving_slots"),
        Hook(_SCALED, "load_own_variables", "ringar.keras.zero.slot_files:loading_slots"),
        Hook(
            "keras.src.legacy.saving.legacy_h5_format", "save_optimizer_weights_to_hdf5_group",
            "ringar.keras.zero.slot_files:refusing", is_public=False,
        ),
    ),
    'shard="weights"': (
        Hook("keras.layers.Layer", "__call__", "ringar.keras.zero.units:gathering"),
        Hook("keras.layers.Layer", "add_weight", "ringar.keras.zero.units:cutting"),
        Hook(_MODEL, "make_train_function", "ringar.keras.zero.units:training_whole_weights"),
        Hook(
            "keras.optimizers.Optimizer", "build",
            "ringar.keras.zero.units:building_whole_weights",
        ),
        Hook(
            "keras.optimizers.Optimizer", "_var_key", "ringar.keras.zero.forward:naming_slices",
            is_public=False,
        ),
        Hook(_MODEL, "evaluate", "ringar.keras.zero.forward:ending_together"),
        Hook(_MODEL, "predict", "ringar.keras.zero.forward:ending_together"),
        Hook(_MODEL, "test_on_batch", "ringar.keras.zero.forward:noting_plan"),
        Hook(_MODEL, "predict_on_batch", "ringar.keras.zero.forward:noting_plan"),
        Hook(_MODEL, "make_test_function", "ringar.keras.zero.forward:making_anew"),
        Hook(_MODEL, "make_predict_function", "ringar.keras.zero.forward:making_anew"),
        *(
            Hook(
                "tensorflow.python.ops.custom_gradient", name,
                "ringar.keras.zero.recomputation:seeing_weights", is_public=False,
            )
            for name in ("_graph_mode_decorator", "_eager_mode_decorator")
        ),
        Hook(
            "tensorflow.python.eager.polymorphic_function.function_context",
            "make_function_context", "ringar.keras.zero.graphs:tracing_anew",
            is_public=False,
        ),
    ),
    "warnings about parts of data": (
        Hook(_MODEL, "evaluate", "ringar.data.marks:watching"),
        Hook(_MODEL, "predict", "ringar.data.marks:watching"),
    ),
}  # fmt: skip

_installed: set[str] = set()


def install(feature: str) -> None:
    """Replace the attributes of a feature, once in a process.

    Args:
        feature: a key of `TABLE`.

    Raises:
        UnsupportedError: the installed Keras or TensorFlow lacks an attribute.
    """
    if feature in _installed:
        return
    all_gaps = list(_gaps(feature))
    if lacking := [hook for hook in all_gaps if hook.is_needed]:
        raise UnsupportedError(f"{feature} cannot work here: {_versions()} {_list(lacking)}")
    _installed.add(feature)
    for hook in TABLE[feature]:
        if hook in all_gaps:
            continue
        owner = _object(hook.owner)
        original = getattr(owner, hook.attribute)
        module, _, function = hook.wrapper.partition(":")
        wrapper: Callable[[Any], Any] = getattr(importlib.import_module(module), function)
        setattr(owner, hook.attribute, functools.wraps(original)(wrapper(original)))


def gaps() -> dict[str, list[Hook]]:
    """Return the attributes that the installed versions lack, by feature, if there are any."""
    lacks = {feature: [hook for hook in _gaps(feature) if hook.is_needed] for feature in TABLE}
    return {feature: hooks for feature, hooks in lacks.items() if hooks}


def warn_of_gaps() -> None:
    """Warn of features that will be refused with the installed Keras and TensorFlow."""
    for feature, hooks in gaps().items():
        _log.warning("%s will be refused: %s %s", feature, _versions(), _list(hooks))


def _gaps(feature: str) -> Iterator[Hook]:
    for hook in TABLE[feature]:
        try:
            getattr(_object(hook.owner), hook.attribute)
        except (ImportError, AttributeError):
            yield hook


def _object(path: str) -> Any:
    """Return the module or class of a dotted path."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        owner, _, name = path.rpartition(".")
        if not owner:
            raise
    return getattr(_object(owner), name)


def _list(hooks: list[Hook]) -> str:
    names = ", ".join(f"{hook.owner}.{hook.attribute}" for hook in hooks)
    return f"lack {names}. Install versions that ringar serves, or a newer ringar."


def _versions() -> str:
    import keras
    import tensorflow as tf

    return f"Keras {keras.__version__} and TensorFlow {tf.__version__}"


def _nothing(base: type) -> dict[str, Any]:
    return {}


_classes: dict[tuple[type, type], type] = {}


def derived(
    base: type, mixin: type, prefix: str, namespace: Callable[[type], dict[str, Any]] = _nothing
) -> type:
    """Return the class of an object that keeps its class `base` and gets the methods of `mixin`.

    An object of the user, such as an optimizer, becomes one of ringar by another `__class__`.

    Args:
        base: the class of the object.
        mixin: the class whose methods come first.
        prefix: the beginning of the name of the class.
        namespace: returns further attributes for a base.
    """
    if (base, mixin) not in _classes:
        name = f"{prefix}{base.__name__}"
        _classes[base, mixin] = type(base)(name, (mixin, base), namespace(base))
    return _classes[base, mixin]
