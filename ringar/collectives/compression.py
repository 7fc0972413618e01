"""What travels instead of a tensor: the compressors, for every argument `compression=`.

A compressor is one of three things:

- It *changes the tensor* before the collective and changes the result back: a class with two static
  methods, `compress` and `decompress`. `Compression.none` changes nothing; one of your own may do
  what it likes.
- It *names a dtype for the wire*, in its attribute `wire`, and leaves the tensor alone:
  `Compression.fp16` and `.bf16`. float32 then travels in that dtype between hosts; every hop adds
  in float32 and rounds the sum once. Inside a host nothing is made narrower, so that on one host
  results are those without compression, bit for bit. Other dtypes, float64 too, travel as they are.
- It *has state* from one step to the next: `Compression.powersgd(...)`, an object with settings,
  whose state a `DistributedOptimizer` keeps. Nothing else takes it (`powersgd.py`).
"""

from __future__ import annotations

from typing import Any

from ringar.collectives.powersgd import PowerSGD

_WIRES = ("", "float16", "bfloat16")


class Compressor:
    """Leave tensors as they are: the base class of compressors.

    A compressor of your own is a class with these two static methods, derived from this one or not.

    Attributes:
        wire: the dtype in which float32 travels between hosts, "float16" or "bfloat16"; "": as it
            is.
    """

    wire: str = ""

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


class FP16Compressor(Compressor):
    """Send float32 between hosts as float16: 11 bits of precision, from 6e-5 to 65504.

    Smaller numbers lose bits, down to 6e-8. The range holds for sums on their way, too: an average
    is divided when it is complete. With factors such as `prescale_factor=1024,
    postscale_factor=1 / 1024` it is moved to where the numbers are.
    """

    wire = "float16"


class BF16Compressor(Compressor):
    """Send float32 between hosts as bfloat16: the range of float32, 8 bits of precision."""

    wire = "bfloat16"


class Compression:
    """Choose how tensors travel: the values of every argument `compression=`.

    A compressor of your own is a class with two static methods: `compress(tensor)` returns what
    travels and a context, `decompress(tensor, context)` undoes it.

    Attributes:
        none: leave tensors as they are.
        fp16: send float32 between hosts as float16 (11 bits of precision, from 6e-5 to 65504).
            Every hop adds in float32. Inside a host nothing is narrowed.
        bf16: the same as bfloat16: the range of float32, 8 bits of precision.
        powersgd: send large gradients as two factors of low rank, with error feedback (Vogels,
            Karimireddy and Jaggi, 2019): `powersgd(rank=2, min_compression_rate=2.0,
            error_feedback=True, seed=0)`. For `ringar.DistributedOptimizer` only.
    """

    none = Compressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    powersgd = PowerSGD


def checked(compression: Any) -> str:
    """Return the dtype that `compression` names for the wire, "" for none.

    Raises:
        ValueError: it is no compressor that a collective can use.
    """
    if isinstance(compression, PowerSGD) or compression is PowerSGD:
        raise ValueError(
            "`compression` must be without state here: what PowerSGD remembers from step to step "
            "has its place in an optimizer. Pass ringar.Compression.powersgd(rank=2) to "
            "ringar.DistributedOptimizer, which reduces what a plain tf.GradientTape computes too. "
            f"Received: compression={compression}"
        )
    return _wire(compression)


def has_state(compression: Any) -> bool:
    """Return whether an optimizer has to keep state for `compression`.

    Raises:
        ValueError: it is no compressor.
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


def _wire(compression: Any) -> str:
    wire = getattr(compression, "wire", "")
    methods = (getattr(compression, name, None) for name in ("compress", "decompress"))
    if not all(map(callable, methods)) or wire not in _WIRES:
        raise ValueError(
            "`compression` must be ringar.Compression.none, .fp16, .bf16, or a class with static "
            'methods `compress` and `decompress`, whose `wire`, if it has one, is "float16" or '
            f'"bfloat16". Received: compression={compression!r}'
        )
    return str(wire)
