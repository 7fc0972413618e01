"""Keras layers for models that are split over ranks, or whose ranks share statistics."""

from ringar.keras.batch_normalization import SyncBatchNormalization
from ringar.keras.local_response_normalization import LocalResponseNormalization
from ringar.parallel.split import Gather, GroupedDense, ReturnExamples, SplitConv2D, SplitDense, Sum

__all__ = [
    "Gather",
    "GroupedDense",
    "LocalResponseNormalization",
    "ReturnExamples",
    "SplitConv2D",
    "SplitDense",
    "Sum",
    "SyncBatchNormalization",
]
