"""The last callback of an epoch: by then every callback of every rank has decided."""

from __future__ import annotations

import keras

from ringar.job.process_sets import ProcessSet
from ringar.keras import checks
from ringar.keras.synchronize import agree


class LastCallback(keras.callbacks.Callback):
    """Stop all ranks if a callback of any rank has stopped its own; compare what callbacks set.

    Args:
        process_set: the ranks that train together.
        check: compare learning rates after each epoch, and weights after the last.
    """

    def __init__(self, process_set: ProcessSet | None, check: bool) -> None:
        super().__init__()
        self._process_set, self._check = process_set, check

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Agree whether to stop; compare the learning rates."""
        agree(self.model, self._process_set, self._check)

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Check that all ranks hold the same weights."""
        if self._check:
            checks.check_weights(self.model, self._process_set)
