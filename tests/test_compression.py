"""Compressors: what each of the three kinds says to a collective, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from ringar.collectives import compression as compressors
from ringar.collectives.call import Call, checked_algorithm
from ringar.collectives.compression import Compression

pytestmark = pytest.mark.ranks(1)


class OwnCompressor:
    """One of a user's, that knows nothing of ringar's."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor * 2, "context"

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        assert context == "context"
        return tensor / 2


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("name", ["none", "fp16", "bf16"])
def test_tensors_are_left_alone(name: str, dtype: str) -> None:
    compressor = getattr(Compression, name)
    for tensor in (tf.zeros([3], dtype), np.asarray(tf.zeros([3], dtype))):
        same, context = compressor.compress(tensor)
        assert same is tensor
        assert compressor.decompress(same, context) is tensor


def test_what_is_said_of_the_wire() -> None:
    assert compressors.checked(Compression.none) == ""
    assert compressors.checked(Compression.fp16) == "float16"
    assert compressors.checked(Compression.bf16) == "bfloat16"
    assert compressors.checked(OwnCompressor) == ""
    assert not compressors.has_state(OwnCompressor)
    assert not compressors.has_state(Compression.fp16)
    assert compressors.has_state(Compression.powersgd(rank=1))


@pytest.mark.parametrize("check", [compressors.checked, compressors.has_state])
def test_no_compressors(check: Any) -> None:
    class OddWire(compressors.Compressor):
        wire = "float8"

    for value in ("fp16", None, OddWire, Compression):
        with pytest.raises(ValueError, match=r"`compression` must be .* Received: compression="):
            check(value)


def test_state_has_no_place_in_a_collective() -> None:
    for value in (Compression.powersgd(rank=3), Compression.powersgd):
        with pytest.raises(ValueError, match=r"`compression` must be without state .*rank=2"):
            compressors.checked(value)
    with pytest.raises(ValueError, match=r"`compression` must be an object with settings"):
        compressors.has_state(Compression.powersgd)


def test_the_spec_says_it() -> None:
    call = Call("allreduce", wire="float16", algorithm="ring", name="a name")
    text = (
        "allreduce dtype=float32 op=sum root=0 set=0 prescale=1.0 postscale=1.0 "
        "wire=float16 algorithm=ring "
    )
    assert call.spec("float32") == text + "name=a name"
    assert call.spec("float32", [(2, 3), ()]) == text + "shapes=2,3; name=a name"
    assert Call.parse(call.spec("float32")) == call


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int32"])
def test_only_float32_is_made_narrower(dtype: str) -> None:
    assert "wire" not in Call("allreduce", wire="float16").spec(dtype)


def test_the_spec_is_silent_otherwise() -> None:
    text = Call("allreduce").spec("float32")
    assert text == "allreduce dtype=float32 op=sum root=0 set=0 prescale=1.0 postscale=1.0 name="
    assert Call.parse(text) == Call("allreduce")


def test_gradients_travel_alike() -> None:
    call = Call("allreduce", wire="bfloat16", algorithm="ring", name="x")
    assert call.gradient() == dataclasses.replace(call, name="x/gradient")
    assert call.gradient(wire="").wire == ""
    # Nothing else has a choice of algorithm, or sums that could be narrower.
    assert call.gradient(collective="allgather") == Call("allgather", name="x/gradient")


def test_algorithms() -> None:
    assert checked_algorithm(None) == checked_algorithm("auto") == ""
    for name in ("ring", "recursive_doubling", "hierarchical"):
        assert checked_algorithm(name) == name
    for value in ("tree", "", 3):
        with pytest.raises(
            ValueError, match=r'`algorithm` must be None or one of "auto", .* Received: algorithm='
        ):
            checked_algorithm(value)
