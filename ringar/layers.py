"""Keras layers: split or on tiles, with statistics of all ranks, with native recurrences."""

from ringar.keras.batch_normalization import SyncBatchNormalization
from ringar.keras.grouped import GroupedConv2D, GroupedDense
from ringar.keras.local_response_normalization import LocalResponseNormalization
from ringar.keras.locally_connected import LocallyConnected2D
from ringar.parallel.joins import Gather, ReturnExamples, Sum
from ringar.parallel.partitioned.convolution import PartitionedConv2D, PartitionedLocallyConnected2D
from ringar.parallel.partitioned.pooling import (
    PartitionedAveragePooling2D,
    PartitionedGlobalAveragePooling2D,
    PartitionedGlobalMaxPooling2D,
    PartitionedMaxPooling2D,
)
from ringar.parallel.partitioned.ways import CutPlane, FlattenPlane, GatherPlane, OwnTile
from ringar.parallel.scan.layers import ScanGRU, ScanLSTM, ScanSimpleRNN
from ringar.parallel.split_layers import SplitConv2D, SplitDense
from ringar.research.hogwild.hogwild_embedding import HogwildEmbedding

__all__ = [
    "CutPlane",
    "FlattenPlane",
    "Gather",
    "GatherPlane",
    "GroupedConv2D",
    "GroupedDense",
    "HogwildEmbedding",
    "LocalResponseNormalization",
    "LocallyConnected2D",
    "OwnTile",
    "PartitionedAveragePooling2D",
    "PartitionedConv2D",
    "PartitionedGlobalAveragePooling2D",
    "PartitionedGlobalMaxPooling2D",
    "PartitionedLocallyConnected2D",
    "PartitionedMaxPooling2D",
    "ReturnExamples",
    "ScanGRU",
    "ScanLSTM",
    "ScanSimpleRNN",
    "SplitConv2D",
    "SplitDense",
    "Sum",
    "SyncBatchNormalization",
]
