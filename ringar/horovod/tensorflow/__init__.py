"""Horovod's functions for TensorFlow 2.16 and later: `import ringar.horovod.tensorflow as hvd`."""

import os

from ringar.horovod import absent
from ringar.horovod.common import environment
from ringar.horovod.common.util import gpu_available
from ringar.horovod.tensorflow import elastic, mpi_ops
from ringar.horovod.tensorflow.compression import Compression
from ringar.horovod.tensorflow.functions import (
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from ringar.horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from ringar.horovod.tensorflow.handles import poll, synchronize
from ringar.horovod.tensorflow.mpi_ops import *  # noqa: F403
from ringar.horovod.tensorflow.optimizer import DistributedOptimizer
from ringar.horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
from ringar.horovod.tensorflow.tape import (
    DistributedGradientTape,
    PartialDistributedGradientTape,
)

__all__ = [
    "gpu_available",
    "poll",
    "synchronize",
    "broadcast_variables",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "allgather_object",
    "Compression",
    "DistributedOptimizer",
    "DistributedGradientTape",
    "PartialDistributedGradientTape",
    "LocalGradientAggregationHelper",
    "SyncBatchNormalization",
    "elastic",
]
__all__ += mpi_ops.__all__

__getattr__ = absent.getter(__name__)

environment.publish(os.environ)
