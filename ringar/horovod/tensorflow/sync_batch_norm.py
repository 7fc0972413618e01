"""Horovod's batch normalization with the statistics of all ranks."""

from __future__ import annotations

from typing import Any

import keras

from ringar.keras import batch_normalization


@keras.saving.register_keras_serializable(package="ringar.horovod")
class SyncBatchNormalization(batch_normalization.SyncBatchNormalization):
    """Normalize by the statistics of the examples of all ranks.

    Args:
        fused: False; TensorFlow's fused kernel has the statistics of one rank.
        **kwargs: as for `keras.layers.BatchNormalization`.

    Raises:
        ValueError: `fused` is not False.
    """

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused is not False:
            raise ValueError(
                "`fused` must be False: the fused kernel has the statistics of one rank. "
                f"Received: fused={fused}"
            )
        super().__init__(**kwargs)
