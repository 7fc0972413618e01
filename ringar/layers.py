"""Keras layers: split over ranks, with statistics of all ranks, with native recurrences."""

from ringar.asynchronous import HogwildEmbedding
from ringar.keras.batch_normalization import SyncBatchNormalization
from ringar.keras.grouped import GroupedConv2D, GroupedDense
from ringar.keras.local_response_normalization import LocalResponseNormalization
from ringar.parallel.scan.layers import ScanGRU, ScanLSTM, ScanSimpleRNN
from ringar.parallel.split import Gather, ReturnExamples, SplitConv2D, SplitDense, Sum

__all__ = [
    "Gather",
    "GroupedConv2D",
    "GroupedDense",
    "HogwildEmbedding",
    "LocalResponseNormalization",
    "ReturnExamples",
    "ScanGRU",
    "ScanLSTM",
    "ScanSimpleRNN",
    "SplitConv2D",
    "SplitDense",
    "Sum",
    "SyncBatchNormalization",
]
