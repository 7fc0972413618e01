"""Horovod's collectives: its arguments, averages of integers, and scale of gradients.

ringar's gradient of a rank's input is that of the sum of all ranks' losses. Horovod's differs by
the number of ranks n: it is 1/n of that for all-gathers and broadcasts, and n times that for
reduce-scatters. So the input of these passes through an identity whose gradient has the factor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from ringar import collectives
from ringar.collectives.call import do_not_convert
from ringar.horovod.common.process_sets import global_process_set
from ringar.horovod.common.reduce_op import ReduceOp
from ringar.horovod.common.util import get_average_backwards_compatibility_fun
from ringar.horovod.tensorflow import handles
from ringar.horovod.tensorflow.adasum import adasum
from ringar.horovod.tensorflow.compression import Compression
from ringar.horovod.tensorflow.place_ops import size_op
from ringar.job.process_sets import ProcessSet

Average, Sum, Adasum, Min, Max, Product = ReduceOp
Compressor: TypeAlias = type[Any]
"""A class with the static methods `compress` and `decompress`."""

handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(ReduceOp)


@do_not_convert
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
    process_set: ProcessSet = global_process_set,
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
        return _reduce_slices([tensor], chosen, factors, name, process_set)[0]
    return _reduce_dense([tensor], compression, chosen, factors, name, process_set)[0]


@do_not_convert
def grouped_allreduce(
    tensors: Sequence[tf.Tensor | tf.IndexedSlices],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[tf.Tensor | tf.IndexedSlices]:
    """Reduce several tensors over all ranks, as `allreduce` does; slices stay slices."""
    del device_dense, device_sparse, ignore_name_scope
    if not tensors:
        return list(tensors)
    chosen = handle_average_backwards_compatibility(op, average)
    factors = (prescale_factor, postscale_factor)
    sparse = [i for i, one in enumerate(tensors) if isinstance(one, tf.IndexedSlices)]
    dense = [i for i in range(len(tensors)) if i not in sparse]
    results: list[Any] = [None] * len(tensors)
    for places, reduced in (
        (sparse, _reduce_slices([tensors[i] for i in sparse], chosen, factors, name, process_set)),
        (
            dense,
            _reduce_dense(
                [tensors[i] for i in dense], compression, chosen, factors, name, process_set
            ),
        ),
    ):
        for place, result in zip(places, reduced, strict=True):
            results[place] = result
    return results


@do_not_convert
def reducescatter(
    tensor: tf.Tensor,
    device_dense: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduce a tensor over all ranks, and leave each rank its share of the rows.

    Arguments are those of `allreduce`; `op` is Average, Sum, Min, Max or Product.
    """
    del device_dense, ignore_name_scope
    factors = (prescale_factor, postscale_factor)
    return _reducescatter([tensor], compression, op, factors, name, process_set)[0]


@do_not_convert
def grouped_reducescatter(
    tensors: Sequence[tf.Tensor],
    device_dense: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """Reduce-scatter several tensors, as `reducescatter` does."""
    del device_dense
    factors = (prescale_factor, postscale_factor)
    return _reducescatter(tensors, compression, op, factors, None, process_set)


@do_not_convert
def allgather(
    tensor: tf.Tensor,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Concatenate the tensors of all ranks along the first dimension, which may differ."""
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


@do_not_convert
def grouped_allgather(
    tensors: Sequence[tf.Tensor],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """All-gather several tensors, as `allgather` does."""
    del ignore_name_scope
    scaled = _with_gradient_times(lambda n: 1 / n, tensors, process_set)
    return _issue(collectives.grouped_allgather, scaled, name=name, process_set=process_set)


@do_not_convert
def broadcast(
    tensor: tf.Tensor,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Send the root rank's tensor to all ranks; `root_rank` is a rank of the job."""
    del ignore_name_scope
    (scaled,) = _with_gradient_times(lambda n: 1 / n, [tensor], process_set)
    return _issue(collectives.broadcast, scaled, root_rank, name=name, process_set=process_set)


@do_not_convert
def broadcast_(
    variables: Sequence[tf.Variable],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Give variables the root rank's values; return these as tensors."""
    values = _issue(
        collectives.grouped_broadcast,
        [tf.convert_to_tensor(variable) for variable in variables],
        root_rank,
        name=name,
        process_set=process_set,
    )
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return [tf.convert_to_tensor(variable) for variable in variables]


@do_not_convert
def alltoall(
    tensor: tf.Tensor,
    splits: tf.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Send rows of a tensor to all ranks, and receive rows from all ranks.

    Args:
        tensor: of at least one dimension.
        splits: how many rows go to each rank; None: equally many.
        name: in errors and timelines; must be equal on all ranks.
        ignore_name_scope: no effect.
        process_set: the ranks that take part.

    Returns:
        The rows received; with `splits`, also how many came from each rank, int32.
    """
    del ignore_name_scope
    tensor = tf.convert_to_tensor(tensor)
    if splits is None:
        return _issue(collectives.alltoall, tensor, name=name, process_set=process_set)
    rows, counts = _issue(collectives.alltoall, tensor, splits, name=name, process_set=process_set)
    return rows, tf.cast(counts, tf.int32)


@do_not_convert
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks have called `barrier`."""
    _issue(collectives.barrier, process_set=process_set)


def _issue(collective: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a collective of ringar, behind those that were started by `*_async` functions."""
    handles.wait_for_all()
    return collective(*args, **kwargs)


@do_not_convert
def _reduce_dense(
    tensors: Sequence[tf.Tensor],
    compression: Compressor,
    op: ReduceOp,
    factors: tuple[float, float],
    name: str | None,
    process_set: ProcessSet,
) -> list[tf.Tensor]:
    if not tensors:
        return []
    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    values = [value for value, _ in pairs]
    if op is Adasum:
        handles.wait_for_all()
        values = [_times(value, factors[0]) for value in values]
        reduced = [_times(v, factors[1]) for v in adasum(values, name, process_set)]
    else:
        reduced = _reduce(collectives.grouped_allreduce, values, op, factors, name, process_set)
    return [
        compression.decompress(value, context)
        for value, (_, context) in zip(reduced, pairs, strict=True)
    ]


def _reducescatter(
    tensors: Sequence[tf.Tensor],
    compression: Compressor,
    op: ReduceOp,
    factors: tuple[float, float],
    name: str | None,
    process_set: ProcessSet,
) -> list[tf.Tensor]:
    if op is Adasum:
        raise NotImplementedError("reducescatter has no op Adasum")
    if not tensors:
        return []
    scaled = _with_gradient_times(lambda n: n, tensors, process_set)
    pairs = [compression.compress(tensor) for tensor in scaled]
    values = [value for value, _ in pairs]
    reduced = _reduce(collectives.grouped_reducescatter, values, op, factors, name, process_set)
    return [
        compression.decompress(value, context)
        for value, (_, context) in zip(reduced, pairs, strict=True)
    ]


@do_not_convert
def _reduce(
    collective: Callable[..., list[tf.Tensor]],
    values: Sequence[tf.Tensor],
    op: ReduceOp,
    factors: tuple[float, float],
    name: str | None,
    process_set: ProcessSet,
) -> list[tf.Tensor]:
    """Reduce floating tensors by ringar's collective, and integers by rules of Horovod."""
    results: list[Any] = [None] * len(values)
    before, after = factors
    for floats in (True, False):
        places = [i for i, value in enumerate(values) if value.dtype.is_floating is floats]
        if not places:
            continue
        own = [values[i] for i in places]
        if floats:
            scale = {"prescale_factor": before, "postscale_factor": after}
            reduced = _issue(
                collective, own, op.of_ringar, name=name, process_set=process_set, **scale
            )
        else:
            own = [_times(value, before) for value in own]
            plain = Sum if op is Average else op
            reduced = _issue(collective, own, plain.of_ringar, name=name, process_set=process_set)
            if op is Average:
                ranks = _size(process_set)
                reduced = [tf.truncatediv(one, tf.cast(ranks, one.dtype)) for one in reduced]
            reduced = [_times(value, after) for value in reduced]
        for place, result in zip(places, reduced, strict=True):
            results[place] = result
    return results


@do_not_convert
def _reduce_slices(
    slices: Sequence[tf.IndexedSlices],
    op: ReduceOp,
    factors: tuple[float, float],
    name: str | None,
    process_set: ProcessSet,
) -> list[tf.IndexedSlices]:
    """Gather the rows of all ranks, divided by the number of ranks for an average."""
    if not slices:
        return []
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"allreduce of tf.IndexedSlices expected Average or Sum, received {op.name}; pass "
            "sparse_as_dense=True to the optimizer or the tape, or tf.convert_to_tensor(slices)"
        )
    if factors != (1.0, 1.0):
        raise NotImplementedError("allreduce of tf.IndexedSlices takes no factors")
    values = grouped_allgather(
        [one.values for one in slices], name and f"{name}/values", process_set=process_set
    )
    indices = grouped_allgather(
        [one.indices for one in slices], name and f"{name}/indices", process_set=process_set
    )
    if op is Average:
        ranks = _size(process_set)
        values = [value / tf.cast(ranks, value.dtype) for value in values]
    return [
        tf.IndexedSlices(value, index, one.dense_shape)
        for value, index, one in zip(values, indices, slices, strict=True)
    ]


def _size(process_set: ProcessSet) -> tf.Tensor:
    return size_op(process_set.process_set_id or 0)


def _times(tensor: tf.Tensor, factor: float) -> tf.Tensor:
    """Return a tensor times a factor; a product of integers is cut off."""
    if factor == 1.0:
        return tensor
    if tensor.dtype.is_floating:
        return tensor * tf.cast(factor, tensor.dtype)
    return tf.cast(tf.cast(tensor, tf.float64) * factor, tensor.dtype)


def _with_gradient_times(
    factor: Callable[[Any], Any], tensors: Sequence[tf.Tensor], process_set: ProcessSet
) -> list[tf.Tensor]:
    """Return the tensors, and their gradients times a function of the number of ranks."""

    @tf.custom_gradient
    def identity(x: tf.Tensor) -> Any:
        def scaled(upstream: tf.Tensor) -> tf.Tensor:
            ranks = tf.cast(_size(process_set), upstream.dtype)
            return upstream * factor(ranks)

        return tf.identity(x), scaled

    converted = [tf.convert_to_tensor(tensor) for tensor in tensors]
    return [identity(one) if one.dtype.is_floating else one for one in converted]


allreduce_async = handles.in_background(allreduce)
grouped_allreduce_async = handles.in_background(grouped_allreduce)
reducescatter_async = handles.in_background(reducescatter)
grouped_reducescatter_async = handles.in_background(grouped_reducescatter)
allgather_async = handles.in_background(allgather)
grouped_allgather_async = handles.in_background(grouped_allgather)
broadcast_async = handles.in_background(broadcast)
broadcast_async_ = handles.in_background(broadcast_)
alltoall_async = handles.in_background(alltoall)
