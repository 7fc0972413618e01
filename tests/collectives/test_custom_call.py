"""Custom calls of compiled code, in both forms, and a TensorFlow that refuses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

import ringar
from ringar import errors
from ringar.collectives import compiled

pytestmark = [pytest.mark.usefixtures("initialized"), pytest.mark.ranks(1, 2)]

DTYPES = ("float32", "bfloat16", "float64", "int8", "uint8", "int64")


@pytest.fixture(params=["typed", "older"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A form that this TensorFlow has; collectives use it."""
    name: str = request.param
    if not compiled._is_registered(name):
        pytest.skip(f"TensorFlow {tf.__version__} has no {name} form")
    monkeypatch.setattr(compiled, "form", lambda device: name)
    return name


def test_results_have_the_default_layout(form: str) -> None:
    """XLA would pass a transposed operand as it lies in memory."""
    arrays = [np.arange(6).reshape(2, 3).astype(dtype) for dtype in DTYPES]

    @tf.function(jit_compile=True)
    def step(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return [
            ringar.allgather(tf.transpose(tensor), name='a "name" \\ of Zoë') for tensor in tensors
        ]

    results = step(
        *[tf.constant(array, dtype) for array, dtype in zip(arrays, DTYPES, strict=True)]
    )
    for array, result in zip(arrays, results, strict=True):
        expected = np.concatenate([array.T] * ringar.size())
        np.testing.assert_array_equal(tf.cast(result, tf.float64), expected.astype("float64"))


def test_the_error_of_a_call_arrives(form: str) -> None:
    @tf.function(jit_compile=True, autograph=False)
    def fail() -> Any:
        return compiled.custom_call(
            "ringar_failure", [tf.zeros([])], [tf.TensorSpec([], tf.float32)] * 2, 'a "text"\nof ö'
        )

    with pytest.raises(tf.errors.InternalError, match='a "text"\nof ö'):
        fail()


def test_the_form_of_this_tensorflow() -> None:
    version = tuple(map(int, tf.__version__.split(".")[:2]))
    assert compiled.form("CPU") == ("older" if version < (2, 18) else "typed")


def refuse(*arguments: Any, **options: Any) -> None:
    raise tf.errors.UnimplementedError(None, None, "API_VERSION_X is not supported by XLA:GPU")


def test_the_older_form_is_called_where_the_typed_one_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(xla, "call_module", refuse)
    assert compiled.form.__wrapped__("CPU") == "older"


def test_a_tensorflow_that_refuses_both_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("call_module", "custom_call_v2"):
        monkeypatch.setattr(xla, name, refuse)
    monkeypatch.setattr(compiled, "form", compiled.form.__wrapped__)

    @tf.function(jit_compile=True)
    def step(tensor: tf.Tensor) -> tf.Tensor:
        return ringar.allreduce(tensor)

    with pytest.raises(errors.UnsupportedError) as caught:
        step(tf.ones([3]))
    for word in (tf.__version__, "API_VERSION_X", "on the CPU", "older form", "jit_compile=False"):
        assert word in str(caught.value)
