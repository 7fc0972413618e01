"""The plan of the buckets, as data."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ringar.keras import buckets
from ringar.keras.buckets import Bucket, Spec

pytestmark = pytest.mark.ranks(1)


def floats(*sizes: int) -> list[Spec]:
    """Specs of float32 vectors of these many bytes."""
    return [Spec((size // 4,), "float32") for size in sizes]


def test_last_tensor_first_and_none_too_large() -> None:
    plan = buckets.plan(floats(40, 40, 40, 40, 40), bucket_bytes=80)
    assert plan == [
        Bucket((4, 3), "float32", 80),
        Bucket((2, 1), "float32", 80),
        Bucket((0,), "float32", 40),
    ]


def test_first_bucket_may_be_smaller() -> None:
    plan = buckets.plan(floats(*[40] * 6), bucket_bytes=120, first_bucket_bytes=40)
    assert [bucket.indices for bucket in plan] == [(5,), (4, 3, 2), (1,), (0,)]
    sizes = [bucket.bytes for bucket in buckets.plan(floats(*[2**20] * 20))]
    assert sizes == [buckets.DEFAULT_FIRST_BUCKET_BYTES, 2**23, 2**23, 2**21, 2**20]


def test_what_comes_last_has_a_small_bucket() -> None:
    plan = buckets.plan(floats(4, 8, 200, 4), bucket_bytes=400, first_bucket_bytes=40)
    assert [bucket.indices for bucket in plan] == [(3,), (2,), (1, 0)]
    assert [bucket.bytes for bucket in plan] == [4, 200, 12]


def test_larger_than_a_bucket_travels_alone() -> None:
    plan = buckets.plan(floats(4, 400, 4), bucket_bytes=40)
    assert [bucket.indices for bucket in plan] == [(2,), (1,), (0,)]


def test_a_bucket_has_one_dtype_and_leaves_when_it_is_complete() -> None:
    dtypes = ["float32", "float16", "float32", "float16"]
    plan = buckets.plan([Spec((2,), dtype) for dtype in dtypes])
    # float16 is complete at index 1, float32 only at index 0.
    assert plan == [Bucket((3, 1), "float16", 8), Bucket((2, 0), "float32", 16)]


def test_none_keeps_its_place() -> None:
    plan = buckets.plan([Spec((1,), "float32"), None, Spec((1,), "float32")])
    assert plan == [Bucket((2, 0), "float32", 8)]
    assert buckets.plan([None, None]) == []
    assert buckets.plan([]) == []


def test_scalars_empty_and_unknown_sizes() -> None:
    specs = [Spec((), "float64"), Spec((0, 3), "float64"), Spec((None, 2), "float64")]
    unknown_rank = SimpleNamespace(shape=SimpleNamespace(dims=None), dtype="float64")
    plan = buckets.plan([*specs, specs[0], unknown_rank])
    assert plan == [
        Bucket((4,), "float64", 0),
        Bucket((3,), "float64", 8),
        Bucket((2,), "float64", 0),
        Bucket((1, 0), "float64", 8),
    ]


def test_every_index_once_whatever_the_sizes() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        count, limit = rng.integers(1, 30), int(rng.integers(1, 200))
        dtypes = rng.choice(["float32", "float16", "int64"], count)
        specs = [Spec((int(rng.integers(0, 40)),), str(dtype)) for dtype in dtypes]
        plan = buckets.plan(specs, limit)
        assert sorted(i for bucket in plan for i in bucket.indices) == list(range(count))
        for bucket in plan:
            assert {specs[i].dtype for i in bucket.indices} == {bucket.dtype}
            assert bucket.bytes <= limit or len(bucket.indices) == 1
            assert list(bucket.indices) == sorted(bucket.indices, reverse=True)
        assert buckets.plan(specs, limit) == plan


def test_specs_of_what_has_shape_and_dtype() -> None:
    assert Spec.of(np.zeros((2, 3), np.float16)) == Spec((2, 3), "float16")
    assert Spec.of(SimpleNamespace(shape=(None, 2), dtype="bfloat16")).bytes is None
    assert Spec.of(SimpleNamespace(shape=(), dtype=np.int8)).bytes == 1


@pytest.mark.parametrize(
    ("indices", "label"),
    [((7, 6, 5, 2), "7-5,2"), ((3,), "3"), ((3, 1, 0), "3,1-0"), ((4, 2, 0), "4,2,0")],
)
def test_label(indices: tuple[int, ...], label: str) -> None:
    assert Bucket(indices, "float32", 0).label == label


def test_refusals() -> None:
    with pytest.raises(ValueError, match="`bucket_bytes` must be a positive number"):
        buckets.plan(floats(4), bucket_bytes=0)
    with pytest.raises(ValueError, match="`first_bucket_bytes` must be a positive number"):
        buckets.plan(floats(4), first_bucket_bytes=-1)
    with pytest.raises(ValueError, match="one of the dtypes"):
        buckets.plan([SimpleNamespace(shape=(1,), dtype="string")])
