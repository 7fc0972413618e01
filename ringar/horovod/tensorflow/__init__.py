"""Horovod's functions for TensorFlow 2.16 and later: `import ringar.horovod.tensorflow as hvd`."""

import os

from ringar.horovod import absent
from ringar.horovod.common import environment
from ringar.horovod.common.built import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from ringar.horovod.common.job import (
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from ringar.horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from ringar.horovod.common.reduce_op import Adasum, Average, Max, Min, Product, Sum
from ringar.horovod.common.util import gpu_available
from ringar.horovod.common.util import num_rank_is_power_2 as check_num_rank_power_of_2
from ringar.horovod.tensorflow import elastic
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
from ringar.horovod.tensorflow.joining import join
from ringar.horovod.tensorflow.mpi_ops import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_async,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    handle_average_backwards_compatibility,
    reducescatter,
    reducescatter_async,
)
from ringar.horovod.tensorflow.optimizer import DistributedOptimizer
from ringar.horovod.tensorflow.place_ops import (
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from ringar.horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
from ringar.horovod.tensorflow.tape import (
    DistributedGradientTape,
    PartialDistributedGradientTape,
)

__all__ = [
    "init",
    "shutdown",
    "is_initialized",
    "start_timeline",
    "stop_timeline",
    "size",
    "local_size",
    "cross_size",
    "rank",
    "local_rank",
    "cross_rank",
    "is_homogeneous",
    "size_op",
    "local_size_op",
    "rank_op",
    "local_rank_op",
    "process_set_included_op",
    "mpi_threads_supported",
    "mpi_enabled",
    "mpi_built",
    "gloo_enabled",
    "gloo_built",
    "nccl_built",
    "ddl_built",
    "ccl_built",
    "cuda_built",
    "rocm_built",
    "gpu_available",
    "ProcessSet",
    "global_process_set",
    "add_process_set",
    "remove_process_set",
    "Average",
    "Sum",
    "Adasum",
    "Min",
    "Max",
    "Product",
    "handle_average_backwards_compatibility",
    "check_num_rank_power_of_2",
    "allreduce",
    "grouped_allreduce",
    "reducescatter",
    "grouped_reducescatter",
    "allgather",
    "grouped_allgather",
    "broadcast",
    "broadcast_",
    "alltoall",
    "barrier",
    "join",
    "poll",
    "synchronize",
    "allreduce_async",
    "grouped_allreduce_async",
    "reducescatter_async",
    "grouped_reducescatter_async",
    "allgather_async",
    "grouped_allgather_async",
    "broadcast_async",
    "broadcast_async_",
    "alltoall_async",
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

__getattr__ = absent.getter(__name__)

environment.publish(os.environ)
