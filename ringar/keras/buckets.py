"""The plan of the buckets: which gradients one collective reduces, and in which order.

One collective per gradient would pay a latency per variable. One collective for all gradients
could start only when the last of them is computed. Buckets are the compromise: the backward pass
computes the gradients of the last layers first, and the first bucket, which holds them, is reduced
while the gradients of earlier layers are computed.

A plan is plain data, made once while a training step is traced. All ranks make the same plan
without communication, from the same shapes and dtypes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ringar.collectives.dtypes import ITEM_BYTES
from ringar.job import log, membership, native, place

_log = log.logger(__name__)

#: A bucket is closed before it would grow beyond this many bytes, on few hosts.
DEFAULT_BUCKET_BYTES = 8 * 1024 * 1024

#: The first bucket is smaller, so that communication begins early in the backward pass.
DEFAULT_FIRST_BUCKET_BYTES = 1024 * 1024


def default_bytes() -> int:
    """Return the size of buckets for this job's hosts and network, the same on all ranks.

    An allreduce of n hosts takes a latency in each of about 3 log2(n) rounds, so longer buckets
    are better where hosts are many, or the link is fast (`ringar.cost_model.bucket_bytes`). The
    ranks of an elastic job, of which some have traced their step before others start, keep to one
    size.
    """
    if not place.is_initialized() or membership.is_elastic():
        return DEFAULT_BUCKET_BYTES
    return max(DEFAULT_BUCKET_BYTES, int(native.library().ringar_bucket_bytes()))


@dataclass(frozen=True)
class Spec:
    """Describe one tensor for the plan; None is a dimension, or a shape, that is not known."""

    shape: tuple[int | None, ...] | None
    dtype: str

    @classmethod
    def of(cls, tensor: Any) -> Spec:
        """Return the spec of an object with `.shape` and `.dtype`, such as a variable or tensor."""
        # A shape of unknown rank is None, or a `tf.TensorShape` without dimensions.
        dims = getattr(tensor.shape, "dims", tensor.shape)
        shape = None if dims is None else tuple(None if d is None else int(d) for d in tensor.shape)
        return cls(shape, _dtype_name(tensor.dtype))

    @property
    def bytes(self) -> int | None:
        """Size in bytes, or None where a dimension or the shape is not known."""
        if self.shape is None or None in self.shape:
            return None
        return math.prod(d for d in self.shape if d is not None) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Bucket:
    """List tensors of one dtype that one collective reduces.

    Attributes:
        indices: their indices in the list that was planned, highest first.
        dtype: their dtype, as NumPy spells it.
        bytes: their total size. A tensor of unknown size counts as 0 bytes.
    """

    indices: tuple[int, ...]
    dtype: str
    bytes: int

    @property
    def label(self) -> str:
        """The indices in short, for names; see `label`."""
        return label(self.indices)

    def __str__(self) -> str:
        return f"{self.dtype}[{self.label}] {self.bytes}"


def label(indices: Iterable[int]) -> str:
    """Return indices in short, highest first: "7-4,2". Errors show the ranks' labels."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][-1] == index + 1:
            runs[-1][1:] = [index]
        else:
            runs.append([index])
    return ",".join("-".join(map(str, run)) for run in runs)


def plan(
    tensors: Iterable[Any],
    bucket_bytes: int | None = None,
    first_bucket_bytes: int | None = None,
) -> list[Bucket]:
    """Deal `tensors` into buckets, the last tensor first.

    Args:
        tensors: variables, tensors or `Spec`s in the order of the model's layers. None counts as an
            index, and is in no bucket.
        bucket_bytes: a bucket is closed before it would exceed this many bytes; a larger tensor has
            one of its own. By default `default_bytes()`.
        first_bucket_bytes: the same limit for the first and the last bucket of each dtype; by
            default 1 MiB or `bucket_bytes`, whichever is less.

    Returns:
        The buckets in the order in which the backward pass completes them. Each index of a tensor
        that is not None is in exactly one of them.

    Raises:
        ValueError: if a size is not positive.
    """
    buckets = deal(tensors, bucket_bytes, first_bucket_bytes)
    _log.debug("buckets, as dtype[variables] bytes: %s", ", ".join(map(str, buckets)))
    return buckets


def deal(
    tensors: Iterable[Any],
    bucket_bytes: int | None = None,
    first_bucket_bytes: int | None = None,
) -> list[Bucket]:
    """Return what `plan` returns, without logging it: the step may never be taken."""
    if bucket_bytes is None:
        bucket_bytes = default_bytes()
    if first_bucket_bytes is None:
        first_bucket_bytes = min(bucket_bytes, DEFAULT_FIRST_BUCKET_BYTES)
    for name, size in (("bucket_bytes", bucket_bytes), ("first_bucket_bytes", first_bucket_bytes)):
        if size < 1:
            raise ValueError(
                f"`{name}` must be a positive number of bytes. Received: {name}={size}"
            )
    specs = [None if tensor is None else Spec.of(tensor) for tensor in tensors]
    buckets = []
    # Each bucket has one dtype: a group of two dtypes would be two collectives.
    for dtype in dict.fromkeys(spec.dtype for spec in reversed(specs) if spec is not None):
        buckets += _plan_dtype(specs, dtype, bucket_bytes, first_bucket_bytes)
    # A bucket is ready when its lowest index, the last of its gradients, is computed.
    buckets.sort(key=lambda bucket: -bucket.indices[-1])
    return buckets


def _plan_dtype(
    specs: Sequence[Spec | None], dtype: str, limit: int, first_limit: int
) -> list[Bucket]:
    buckets: list[Bucket] = []
    indices: list[int] = []
    total = 0
    for index in reversed(range(len(specs))):
        spec = specs[index]
        if spec is None or spec.dtype != dtype:
            continue
        size = spec.bytes
        room = limit if buckets else first_limit
        # A tensor of unknown size has a bucket of its own.
        if indices and (size is None or total + size > room):
            buckets.append(Bucket(tuple(indices), dtype, total))
            indices, total = [], 0
        indices.append(index)
        total += size or 0
        if size is None:
            buckets.append(Bucket(tuple(indices), dtype, total))
            indices, total = [], 0
    if indices:
        buckets += _split_last(specs, Bucket(tuple(indices), dtype, total), first_limit)
    return buckets


def _split_last(specs: Sequence[Spec | None], last: Bucket, limit: int) -> list[Bucket]:
    """Split off a small last bucket, since no computation is left to hide its reduction."""
    sizes = {i: spec.bytes or 0 for i in last.indices if (spec := specs[i]) is not None}
    count, total = 0, 0
    while count < len(last.indices) and total + sizes[last.indices[-1 - count]] <= limit:
        total += sizes[last.indices[-1 - count]]
        count += 1
    if count in (0, len(last.indices)):
        return [last]
    return [
        Bucket(last.indices[:-count], last.dtype, last.bytes - total),
        Bucket(last.indices[-count:], last.dtype, total),
    ]


def _dtype_name(dtype: Any) -> str:
    # TensorFlow's DType and NumPy's dtype have a name, NumPy's scalar types are classes, and Keras'
    # dtypes are strings.
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    if name not in ITEM_BYTES:
        raise ValueError(
            f"Tensors must have one of the dtypes {', '.join(ITEM_BYTES)}. Received: dtype={name}"
        )
    return name
