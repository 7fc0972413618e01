"""The plan of the gradients' journey: which travel together, and in which order.

One collective per gradient would pay a latency per variable; one collective for all of them could
start only when the last gradient is there. Between the two lie buckets: the backward pass makes the
gradients of the last layers first, so that the first bucket holds those and is on its way while the
layers before them are still being differentiated.

A plan is plain data, made once while a training step is traced. Every rank makes it from the same
shapes and dtypes, so that all ranks make the same one without a word between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ringar.collectives.dtypes import ITEM_BYTES

#: A bucket is closed before it would grow beyond this many bytes.
DEFAULT_BUCKET_BYTES = 8 * 1024 * 1024

#: The first bucket is smaller, so that communication begins early in the backward pass.
DEFAULT_FIRST_BUCKET_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Spec:
    """Describe one tensor for the plan; None is a dimension not known in advance."""

    shape: tuple[int | None, ...]
    dtype: str

    @classmethod
    def of(cls, tensor: Any) -> Spec:
        """Return the spec of whatever has `.shape` and `.dtype`: a variable, a tensor, a spec."""
        return cls(
            tuple(None if d is None else int(d) for d in tensor.shape), _dtype_name(tensor.dtype)
        )

    @property
    def bytes(self) -> int | None:
        """Size in bytes, or None where a dimension is not known."""
        dims = [d for d in self.shape if d is not None]
        if len(dims) < len(self.shape):
            return None
        return math.prod(dims) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Bucket:
    """Tensors of one dtype that travel in one collective.

    Attributes:
        indices: their places in the list that was planned, highest first.
        dtype: their dtype, as NumPy spells it.
        bytes: their size together. A tensor whose size is not known counts as none.
    """

    indices: tuple[int, ...]
    dtype: str
    bytes: int

    @property
    def label(self) -> str:
        """The indices in short, for names; see `label`."""
        return label(self.indices)


def label(indices: Iterable[int]) -> str:
    """Return indices in short, highest first: "7-4,2". Errors show where ranks have other ones."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][-1] == index + 1:
            runs[-1][1:] = [index]
        else:
            runs.append([index])
    return ",".join("-".join(map(str, run)) for run in runs)


def plan(
    tensors: Iterable[Any],
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    first_bucket_bytes: int | None = None,
) -> list[Bucket]:
    """Deal `tensors` into buckets, the last tensor first.

    Args:
        tensors: variables, tensors or `Spec`s in the order of the model's layers; None keeps its
            place and is left out.
        bucket_bytes: a bucket is closed before it would exceed this many bytes; a larger tensor has
            one of its own.
        first_bucket_bytes: the same for the first bucket of each dtype, and for the last one, as
            far as tensors can be parted; by default 1 MiB or `bucket_bytes`, whichever is less.

    Returns:
        The buckets in the order in which the backward pass completes them. Each index of a tensor
        that is not None is in exactly one of them.

    Raises:
        ValueError: if a size is not positive.
    """
    if first_bucket_bytes is None:
        first_bucket_bytes = min(bucket_bytes, DEFAULT_FIRST_BUCKET_BYTES)
    for name, size in (("bucket_bytes", bucket_bytes), ("first_bucket_bytes", first_bucket_bytes)):
        if size < 1:
            raise ValueError(
                f"`{name}` must be a positive number of bytes. Received: {name}={size}"
            )
    specs = [None if tensor is None else Spec.of(tensor) for tensor in tensors]
    buckets = []
    # Buckets are of one dtype each: a group that mixed them would be two collectives in any case.
    for dtype in dict.fromkeys(spec.dtype for spec in reversed(specs) if spec is not None):
        buckets += _plan_dtype(specs, dtype, bucket_bytes, first_bucket_bytes)
    # A bucket can leave when its lowest index, the last of its gradients to be computed, is there.
    return sorted(buckets, key=lambda bucket: -bucket.indices[-1])


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
        # A tensor of unknown size may be of any: it closes the bucket before it and its own.
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
    """Leave what comes last of all, behind which nothing is left to compute, in a small bucket."""
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
    # TensorFlow's DType and NumPy's dtype have a name; Keras has plain strings; NumPy's scalar
    # types are classes.
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    if name not in ITEM_BYTES:
        raise ValueError(
            f"Tensors must have one of the dtypes {', '.join(ITEM_BYTES)}. Received: dtype={name}"
        )
    return name
