"""Compression: what becomes narrower, and that it comes back as it was."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from ringar.compression import Compression

pytestmark = pytest.mark.ranks(1)

NARROW = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("make", [np.asarray, tf.constant], ids=["numpy", "tensorflow"])
@pytest.mark.parametrize("wide", ["float32", "float64"])
@pytest.mark.parametrize("name", NARROW)
def test_wide_floats_travel_narrow(name: str, wide: str, make: Any) -> None:
    values = np.array([1.0, 0.1, -3e-5, 70000.0], wide)
    compressor = getattr(Compression, name)
    narrow, context = compressor.compress(make(values))
    assert np.asarray(narrow).dtype == NARROW[name]
    back = compressor.decompress(narrow, context)
    assert type(back) is type(make(values))
    assert np.asarray(back).dtype == wide
    with np.errstate(over="ignore"):
        expected = values.astype(NARROW[name]).astype(wide)
    np.testing.assert_array_equal(back, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "int64", "uint8"])
@pytest.mark.parametrize("name", ["none", "fp16", "bf16"])
def test_others_are_left_alone(name: str, dtype: str) -> None:
    compressor = getattr(Compression, name)
    for tensor in (tf.zeros([3], dtype), np.asarray(tf.zeros([3], dtype))):
        narrow, context = compressor.compress(tensor)
        assert narrow is tensor
        assert compressor.decompress(narrow, context) is tensor


def test_none_leaves_everything_alone() -> None:
    tensor = tf.ones([2])
    narrow, context = Compression.none.compress(tensor)
    assert narrow is tensor
    assert Compression.none.decompress(narrow, context) is tensor


def test_variables_and_graphs() -> None:
    @tf.function
    def there_and_back(tensor: tf.Tensor) -> tf.Tensor:
        return Compression.bf16.decompress(*Compression.bf16.compress(tensor))

    assert there_and_back(tf.Variable([1.0, 2.5])).numpy().tolist() == [1.0, 2.5]
