"""Horovod's compressors: tensors that are cast before a collective, and back after it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ringar.collectives.compression import Compressor


class NoneCompressor(Compressor):
    """Leave tensors as they are."""

    @staticmethod
    def compress(tensor: tf.Tensor, ctx: Any = None) -> tuple[tf.Tensor, Any]:
        """Return the tensor, and no context."""
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Return the tensor."""
        return tensor


class FP16Compressor(Compressor):
    """Cast floating tensors to float16, on one host, too."""

    @staticmethod
    def compress(tensor: tf.Tensor, ctx: Any = None) -> tuple[tf.Tensor, Any]:
        """Return the tensor as float16, and its dtype."""
        dtype = tf.as_dtype(tensor.dtype)
        return (tf.cast(tensor, tf.float16) if dtype.is_floating else tensor), dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Return the tensor in the dtype `ctx`."""
        return tf.cast(tensor, ctx) if ctx.is_floating else tensor


class Compression:
    """Choose how tensors travel.

    Attributes:
        none: as they are.
        fp16: as float16. Sums of float16 are added in float32 and rounded once.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
