"""The refusal of Keras 2 (`tf_keras`, `TF_USE_LEGACY_KERAS`) by parts that need Keras 3."""

from __future__ import annotations

from typing import Any

import keras

from ringar.errors import UnsupportedError


def refuse(value: object, name: str) -> None:
    """Raise an error if `value` belongs to Keras 2.

    Args:
        value: a model or an optimizer.
        name: the function or class that has received it.

    Raises:
        UnsupportedError: with what to do.
    """
    bases = type(value).__mro__
    if any(base.__module__.partition(".")[0] == "tf_keras" for base in bases):
        raise UnsupportedError(
            f"{name}: expected an object of Keras 3, received {type(value).__name__} of tf_keras, "
            "which is Keras 2. Unset TF_USE_LEGACY_KERAS, and import keras in place of tf_keras. "
            "With Keras 2 a training loop works: ringar.DistributedGradientTape(tf.GradientTape()) "
            "and ringar.broadcast_variables(model.variables)."
        )


def optimizer_of(identifier: Any, name: str) -> Any:
    """Return an optimizer of Keras 3 as `keras.optimizers.get` does."""
    refuse(identifier, name)
    return keras.optimizers.get(identifier)


class Callback(keras.callbacks.Callback):
    """A callback of Keras 3 that refuses models of Keras 2."""

    def set_model(self, model: keras.Model) -> None:
        """Take the model."""
        refuse(model, type(self).__name__)
        super().set_model(model)
