"""Callbacks for `fit` on several ranks.

Most scripts need `Distributed` only, and `Elastic` where ranks may change.
"""

from ringar.elastic.callback import Elastic
from ringar.keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    Distributed,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
    SaveOnSignal,
)

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "Distributed",
    "Elastic",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "SaveOnSignal",
]
