"""StableHLO modules of one custom call, for XLA's typed foreign function interface.

TensorFlow's own op for custom calls has no argument for the version of their interface, so a call
of the typed interface comes in a module of StableHLO, as text.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

_ELEMENTS = {
    tf.bool: "i1",
    tf.bfloat16: "bf16",
    tf.float16: "f16",
    tf.float32: "f32",
    tf.float64: "f64",
    tf.complex64: "complex<f32>",
    tf.complex128: "complex<f64>",
    **{dtype: f"i{8 * dtype.size}" for dtype in (tf.int8, tf.int16, tf.int32, tf.int64)},
    **{dtype: f"ui{8 * dtype.size}" for dtype in (tf.uint8, tf.uint16, tf.uint32, tf.uint64)},
}


def custom_call(
    target: str,
    operands: Sequence[tf.Tensor],
    results: Sequence[tf.TensorSpec],
    text: str,
    has_side_effect: bool,
) -> str:
    """Return the module of a custom call; its attribute `text` is the text.

    All arrays have the default layout: XLA would choose others where it is not told.
    """
    names = [f"%arg{i}" for i in range(len(operands))]
    outputs = [f"%0#{i}" for i in range(len(results))] if len(results) > 1 else ["%0"]
    types = ", ".join(map(_type, operands))
    kinds = ", ".join(map(_type, results))
    arguments = ", ".join(f"{n}: {_type(o)}" for n, o in zip(names, operands, strict=True))
    attributes = ", ".join(
        [
            f'call_target_name = "{target}"',
            "api_version = 4 : i32",
            f"has_side_effect = {str(has_side_effect).lower()}",
            f"backend_config = {{text = {_string(text)}}}",
            f"operand_layouts = [{', '.join(map(_layout, operands))}]",
            f"result_layouts = [{', '.join(map(_layout, results))}]",
        ]
    )
    return (
        "module @ringar {\n"
        f"func.func public @main({arguments}) -> ({kinds}) {{\n"
        f'%0{f":{len(results)}" if len(results) > 1 else ""} = "stablehlo.custom_call"'
        f"({', '.join(names)}) {{{attributes}}} : ({types}) -> ({kinds})\n"
        f"return {', '.join(outputs)} : {kinds}\n"
        "}\n}\n"
    )


def _type(array: tf.Tensor | tf.TensorSpec) -> str:
    return f"tensor<{''.join(f'{dim}x' for dim in array.shape)}{_ELEMENTS[array.dtype]}>"


def _layout(array: tf.Tensor | tf.TensorSpec) -> str:
    rank = array.shape.rank
    order = f"[{', '.join(map(str, reversed(range(rank))))}]" if rank else ""
    return f"dense<{order}> : tensor<{rank}xindex>"


def _string(text: str) -> str:
    """Return a text as a literal; all but plain characters by their bytes."""
    plain = set(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _-=.,:;/+()[]")
    return '"' + "".join(chr(b) if b in plain else f"\\{b:02X}" for b in text.encode()) + '"'
