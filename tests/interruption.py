"""Interrupt a training, as a crash would."""

from __future__ import annotations

from typing import Any

import keras


class Interrupt(keras.callbacks.Callback):
    """Raise InterruptedError after a number of batches."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.batches = batches

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches -= 1
        if self.batches == 0:
            raise InterruptedError
