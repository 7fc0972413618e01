"""Bring the data of a resumed `fit` to where it was: draw its batches without training on them.

The order of the data is the result of all that was drawn before. Keras shuffles arrays by a
generator that goes on from epoch to epoch, and so do `tf.data`, a `PyDataset` with NumPy, and most
generators. Nothing can set them to a later epoch, but drawing the same batches again can.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

_END = object()


class Redraw:
    """Draw the batches before the one at which `fit` goes on.

    From `begin` to `end` Keras' loop runs as always, and callbacks must not be called. The model
    does not evaluate, and trains on one batch only: the first step makes what Keras makes late, the
    variables of metrics and of further optimizers. So all state must be restored at the end.

    Args:
        model: the model in `fit`.
        epoch: the epoch at which training goes on.
        batches: the batches of that epoch that are done.
    """

    def __init__(self, model: keras.Model, epoch: int, batches: int) -> None:
        self.epoch, self.batches = epoch, batches
        self._model = model
        self._at = -1
        self._train_function: Any = None
        self._has_trained = False

    def begin(self) -> None:
        """Replace the model's training step and its evaluation."""
        self._train_function = self._model.train_function
        self._model.train_function = self._draw
        # In the instance, where it hides the method of the class.
        vars(self._model)["evaluate"] = lambda *_args, **_kwargs: {}

    def end(self) -> None:
        """Give the model its training step and its evaluation back."""
        self._model.train_function = self._train_function
        vars(self._model).pop("evaluate", None)

    def on_epoch_begin(self, epoch: int) -> bool:
        """Return whether training goes on at the beginning of `epoch`."""
        self._at = epoch
        return epoch > self.epoch or (epoch == self.epoch and self.batches == 0)

    def on_train_batch_end(self, batch: int) -> bool:
        """Return whether training goes on after `batch`."""
        return self._at == self.epoch and batch + 1 >= self.batches

    def on_epoch_end(self, epoch: int) -> bool:
        """Return whether the epoch has ended before its last batch to draw."""
        return epoch >= self.epoch

    def _draw(self, iterator: Any) -> dict[str, Any]:
        """Take from `iterator` what Keras' training function takes, and train once."""
        try:
            if not self._has_trained:
                self._has_trained = True
                logs: dict[str, Any] = self._train_function(iterator)
                return logs
            for step in range(self._model.steps_per_execution):
                if next(iterator, _END) is _END:
                    if step == 0:
                        raise tf.errors.OutOfRangeError(None, None, "the data has ended")
                    break
        except (StopIteration, tf.errors.OutOfRangeError):
            raise
        except BaseException:
            self.end()  # or the model would never train again
            raise
        return {}
