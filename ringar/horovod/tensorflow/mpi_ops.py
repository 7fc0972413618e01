"""Horovod's collectives, with its arguments; `reductions.py` has what differs from ringar's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringar import collectives
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
from ringar.horovod.common.reduce_op import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
)
from ringar.horovod.common.util import get_average_backwards_compatibility_fun
from ringar.horovod.common.util import num_rank_is_power_2 as check_num_rank_power_of_2
from ringar.horovod.tensorflow import handles, reductions
from ringar.horovod.tensorflow.compression import Compression
from ringar.horovod.tensorflow.joining import join
from ringar.horovod.tensorflow.place_ops import (
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from ringar.horovod.tensorflow.reductions import Compressor
from ringar.job.process_sets import ProcessSet as _ProcessSet
from ringar.keras.first_step import of_tensorflow

__all__ = [
    "cross_rank",
    "cross_size",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
    "ProcessSet",
    "add_process_set",
    "global_process_set",
    "remove_process_set",
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
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
    "allreduce_async",
    "grouped_allreduce_async",
    "reducescatter_async",
    "grouped_reducescatter_async",
    "allgather_async",
    "grouped_allgather_async",
    "broadcast_async",
    "broadcast_async_",
    "alltoall_async",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]

handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(ReduceOp)


def allreduce(
    tensor: tf.Tensor | tf.IndexedSlices,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: _ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> tf.Tensor | tf.IndexedSlices:
    """Reduce a tensor over all ranks; every rank gets the result.

    Args:
        tensor: a tensor, a variable, a `tf.IndexedSlices`, or what `tf.convert_to_tensor` takes.
        average: deprecated; `op` takes its place.
        device_dense: no effect, as is `device_sparse`: ringar's ops choose.
        device_sparse: no effect.
        compression: `Compression.none` or `.fp16`, or a compressor of ringar.
        op: Average by default; Sum, Min, Max, Product or Adasum. An average of integers is cut off.
        prescale_factor: multiplies each rank's tensor.
        postscale_factor: multiplies the result.
        name: in errors and timelines; must be equal on all ranks.
        process_set: the ranks that take part.
        ignore_name_scope: no effect: names of ringar have no scopes.

    Raises:
        NotImplementedError: an op or a factor for `tf.IndexedSlices` that Horovod refuses.
        ValueError: both `op` and `average`.
    """
    del device_dense, device_sparse, ignore_name_scope
    chosen = handle_average_backwards_compatibility(op, average)
    factors = (prescale_factor, postscale_factor)
    if isinstance(tensor, tf.IndexedSlices):
        return reductions.reduce_slices([tensor], chosen, factors, name, process_set)[0]
    return reductions.reduce_dense([tensor], compression, chosen, factors, name, process_set)[0]


def grouped_allreduce(
    tensors: Sequence[tf.Tensor | tf.IndexedSlices],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: _ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[tf.Tensor | tf.IndexedSlices]:
    """Reduce several tensors over all ranks, as `allreduce` does; slices stay slices."""
    del device_dense, device_sparse, ignore_name_scope
    if not tensors:
        return list(tensors)
    chosen = handle_average_backwards_compatibility(op, average)
    factors = (prescale_factor, postscale_factor)
    sparse = [i for i, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    dense = [i for i in range(len(tensors)) if i not in sparse]
    rest = (name, process_set)
    slices = reductions.reduce_slices([tensors[i] for i in sparse], chosen, factors, *rest)
    sums = reductions.reduce_dense([tensors[i] for i in dense], compression, chosen, factors, *rest)
    results: dict[int, Any] = dict(zip([*sparse, *dense], [*slices, *sums], strict=True))
    return [results[i] for i in range(len(tensors))]


def reducescatter(
    tensor: tf.Tensor,
    device_dense: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: _ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduce a tensor over all ranks, and leave each rank its share of the rows.

    Arguments are those of `allreduce`; `op` is Average, Sum, Min, Max or Product.
    """
    del device_dense, ignore_name_scope
    factors = (prescale_factor, postscale_factor)
    return reductions.reducescatter([tensor], compression, op, factors, name, process_set)[0]


def grouped_reducescatter(
    tensors: Sequence[tf.Tensor],
    device_dense: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp = Average,
    process_set: _ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """Reduce-scatter several tensors, as `reducescatter` does."""
    del device_dense
    factors = (prescale_factor, postscale_factor)
    return reductions.reducescatter(tensors, compression, op, factors, None, process_set)


def allgather(
    tensor: tf.Tensor,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: _ProcessSet = global_process_set,
) -> tf.Tensor:
    """Concatenate the tensors of all ranks along the first dimension, which may differ."""
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


def grouped_allgather(
    tensors: Sequence[tf.Tensor],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: _ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """All-gather several tensors, as `allgather` does."""
    del ignore_name_scope
    return reductions.gather(tensors, name, process_set)


def broadcast(
    tensor: tf.Tensor,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: _ProcessSet = global_process_set,
) -> tf.Tensor:
    """Send the root rank's tensor to all ranks; `root_rank` is a rank of the job."""
    del ignore_name_scope
    (scaled,) = reductions.with_gradient_times(lambda n: 1 / n, [tensor], process_set)
    return reductions.issue(
        collectives.broadcast, scaled, root_rank, name=name, process_set=process_set
    )


def broadcast_(
    variables: Sequence[tf.Variable],
    root_rank: int,
    name: str | None = None,
    process_set: _ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Give variables the root rank's values; return these as tensors.

    In a graph of TensorFlow 1 a session gives a variable its value when it fetches the tensor.
    """
    return assigned(list(variables), root_rank, name, process_set)


def assigned(
    variables: Sequence[Any], root_rank: int, name: str | None, process_set: _ProcessSet
) -> list[tf.Tensor]:
    """Broadcast variables of TensorFlow or Keras; return tensors that wait for the assignments."""
    values = reductions.issue(
        collectives.grouped_broadcast,
        [tf.convert_to_tensor(variable) for variable in variables],
        root_rank,
        name=name,
        process_set=process_set,
    )
    results = []
    for variable, value in zip(variables, values, strict=True):
        with tf.control_dependencies([of_tensorflow(variable).assign(value, read_value=False)]):
            results.append(tf.identity(value))
    return results


def alltoall(
    tensor: tf.Tensor,
    splits: tf.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: _ProcessSet = global_process_set,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Send rows of a tensor to all ranks, and receive rows from all ranks.

    Args:
        tensor: of at least one dimension.
        splits: how many rows go to each rank; None: equally many, which must come out even.
        name: in errors and timelines; must be equal on all ranks.
        ignore_name_scope: no effect.
        process_set: the ranks that take part.

    Returns:
        The rows received; with `splits`, also how many came from each rank, int32.

    Raises:
        tf.errors.InvalidArgumentError: on all ranks, if one has rows that do not come out even, or
            splits that do not add up.
    """
    del ignore_name_scope
    tensor = tf.convert_to_tensor(tensor)
    if splits is None:
        return reductions.alltoall_evenly(tensor, name, process_set)
    rows, counts = reductions.issue(
        collectives.alltoall, tensor, splits, name=name, process_set=process_set
    )
    return rows, tf.cast(counts, tf.int32)


def barrier(process_set: _ProcessSet = global_process_set) -> None:
    """Wait until all ranks have called `barrier`."""
    reductions.issue(collectives.barrier, process_set=process_set)


allreduce_async = handles.in_background(allreduce)
grouped_allreduce_async = handles.in_background(grouped_allreduce)
reducescatter_async = handles.in_background(reducescatter)
grouped_reducescatter_async = handles.in_background(grouped_reducescatter)
allgather_async = handles.in_background(allgather)
grouped_allgather_async = handles.in_background(grouped_allgather)
broadcast_async = handles.in_background(broadcast)
broadcast_async_ = handles.in_background(broadcast_)
alltoall_async = handles.in_background(alltoall)
