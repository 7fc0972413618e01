"""Callbacks that interrupt a training, or stop it on one rank."""

from __future__ import annotations

from typing import Any

import keras

import ringar


class Interrupt(keras.callbacks.Callback):
    """Raise InterruptedError after a number of batches."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.batches = batches

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches -= 1
        if self.batches == 0:
            raise InterruptedError


class StopOn(keras.callbacks.Callback):
    """Stop on one rank alone, after the third batch of an epoch."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 2 and ringar.rank() == self.rank:
            self.model.stop_training = True
