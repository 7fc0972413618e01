"""Fewer bytes on the way: tensors are made narrower before a collective and wide again after it.

A sum of compressed tensors is accumulated in float32 and rounded to the narrow dtype once, so that
the loss is that of the narrow dtype and does not grow with the number of ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_WIDE = ("float32", "float64")


class Compressor:
    """Leaves tensors as they are; the base of the others.

    A compressor of your own is a class with these two static methods.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return what travels and whatever `decompress` needs to undo it.

        Args:
            tensor: a TensorFlow tensor or variable, or a NumPy array.
        """
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        """Undo `compress`: `context` is the second value that it returned."""
        del context
        return tensor


class _NarrowCompressor(Compressor):
    _dtype: str

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return `tensor` in the narrow dtype and the name of its own.

        Only float32 and float64 are changed.
        """
        wide = _dtype_name(tensor)
        if wide not in _WIDE:
            return tensor, None
        return _cast(tensor, cls._dtype), wide

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        """Return `tensor` in the dtype that it had."""
        return tensor if context is None else _cast(tensor, context)


class FP16Compressor(_NarrowCompressor):
    """float32 and float64 travel as float16: a range of 6e-8 to 65504, 11 bits of precision."""

    _dtype = "float16"


class BF16Compressor(_NarrowCompressor):
    """float32 and float64 travel as bfloat16: the range of float32, 8 bits of precision."""

    _dtype = "bfloat16"


class Compression:
    """The compressors to choose from: `ringar.Compression.fp16` and so on."""

    none = Compressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def _dtype_name(tensor: Any) -> str:
    return str(getattr(tensor.dtype, "name", tensor.dtype))


def _cast(tensor: Any, dtype: str) -> Any:
    if isinstance(tensor, np.ndarray | np.generic):
        return tensor.astype(_numpy_dtype(dtype))
    # Only here, so that NumPy arrays can be compressed without TensorFlow.
    import tensorflow as tf

    return tf.cast(tensor, dtype)


def _numpy_dtype(dtype: str) -> Any:
    if dtype != "bfloat16":
        return np.dtype(dtype)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)
