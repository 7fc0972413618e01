"""Keras layers for models that are split over ranks, or whose ranks share statistics."""

from ringar.keras.batch_normalization import SyncBatchNormalization
from ringar.keras.grouped import GroupedConv2D, GroupedDense
from ringar.keras.local_response_normalization import LocalResponseNormalization
from ringar.parallel.split import Gather, ReturnExamples, SplitConv2D, SplitDense, Sum

__all__ = [
    "Gather",
    "GroupedConv2D",
    "GroupedDense",
    "LocalResponseNormalization",
    "ReturnExamples",
    "SplitConv2D",
    "SplitDense",
    "Sum",
    "SyncBatchNormalization",
]
