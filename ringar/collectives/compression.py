"""Compressors, the values of every argument `compression=`.

There are three kinds:

- A compressor that *changes the tensor* before the collective and restores the result: a class with
  two static methods, `compress` and `decompress`. `Compression.none` changes nothing. Users may
  write their own.
- A compressor that *names a wire dtype* in its attribute `wire` and leaves the tensor as it is:
  `Compression.fp16` and `.bf16`. float32 then travels in that dtype between hosts. Every step of
  the algorithm adds in float32 and rounds the sum once. Inside a host nothing is narrowed, so that
  one host gets the results without compression, bit for bit. Other dtypes, float64 too, travel
  unchanged.
- A compressor *with state* from step to step: `Compression.powersgd(...)`, an object with settings.
  A `DistributedOptimizer` keeps its state; nothing else accepts it (`powersgd.py`).
"""

from __future__ import annotations

from typing import Any

from ringar.collectives.dtypes import Array
from ringar.collectives.powersgd import PowerSGD

_WIRES = ("", "float16", "bfloat16")


class Compressor:
    """Leave tensors as they are: the base class of compressors.

    A compressor of your own is a class with these two static methods, derived from this one or not.

    Attributes:
        wire: the dtype in which float32 travels between hosts, "float16" or "bfloat16"; "":
            float32.
    """

    wire: str = ""

    @staticmethod
    def compress(tensor: Array) -> tuple[Array, object]:
        """Return the tensor that travels, and the context for `decompress`.

        Args:
            tensor: a TensorFlow tensor or variable, or a NumPy array.
        """
        return tensor, None

    @staticmethod
    def decompress(tensor: Array, context: Any) -> Array:
        """Undo `compress`: `context` is the second value that it returned."""
        del context
        return tensor


class FP16Compressor(Compressor):
    """Send float32 between hosts as float16: 11 bits of precision, from 6e-5 to 65504.

    Smaller numbers lose bits, down to 6e-8. Partial sums must stay within the range, too: an
    average is divided at the end. Factors such as `prescale_factor=1024,
    postscale_factor=1 / 1024` shift the range to the numbers.
    """

    wire = "float16"


class BF16Compressor(Compressor):
    """Send float32 between hosts as bfloat16: the range of float32, 8 bits of precision."""

    wire = "bfloat16"


class Compression:
    """Choose how tensors travel: the values of every argument `compression=`.

    A compressor of your own is a class with two static methods: `compress(tensor)` returns what
    travels and a context, `decompress(tensor, context)` undoes the change.

    Attributes:
        none: leave tensors as they are.
        fp16: send float32 between hosts as float16 (11 bits of precision, from 6e-5 to 65504).
            Every addition is in float32. Inside a host nothing is narrowed.
        bf16: the same as bfloat16: the range of float32, 8 bits of precision.
        powersgd: send large gradients as two factors of low rank, with error feedback (Vogels,
            Karimireddy and Jaggi, 2019): `powersgd(rank=2, min_compression_rate=2.0,
            error_feedback=True, seed=0)`. For `ringar.DistributedOptimizer` only.
    """

    none = Compressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    powersgd = PowerSGD


def checked(compression: object) -> str:
    """Return the wire dtype of `compression`, "" for none.

    Raises:
        ValueError: a collective cannot use `compression`.
    """
    if compression is Compressor:
        return ""
    if isinstance(compression, PowerSGD) or compression is PowerSGD:
        raise ValueError(
            "`compression` must be without state here: only an optimizer keeps what PowerSGD "
            "remembers from step to step. Pass ringar.Compression.powersgd(rank=2) to "
            "ringar.DistributedOptimizer, which reduces what a plain tf.GradientTape computes too. "
            f"Received: compression={compression}"
        )
    return _wire(compression)


def has_state(compression: object) -> bool:
    """Return whether an optimizer has to keep state for `compression`.

    Raises:
        ValueError: `compression` is no compressor.
    """
    if isinstance(compression, PowerSGD):
        return True
    if compression is PowerSGD:
        raise ValueError(
            "`compression` must be an object with settings, such as "
            "ringar.Compression.powersgd(rank=2). Received: compression=ringar.Compression.powersgd"
        )
    _wire(compression)
    return False


def _wire(compression: object) -> str:
    wire = getattr(compression, "wire", "")
    methods = (getattr(compression, name, None) for name in ("compress", "decompress"))
    if not all(map(callable, methods)) or wire not in _WIRES:
        raise ValueError(
            "`compression` must be ringar.Compression.none, .fp16, .bf16, or a class with static "
            'methods `compress` and `decompress`, whose `wire`, if it has one, is "float16" or '
            f'"bfloat16". Received: compression={compression!r}'
        )
    return str(wire)
