"""A collective of one rank: its description, its errors and its result.

`rejection` and the texts of errors are those of tf_ops/engine/request.cc and signature.cc, and the
results those of tf_ops/algorithms/alone.cc and tf_ops/engine/shares.cc.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from ringar.job.one_rank.failure import MISMATCH, Failure

_REDUCIBLE = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64")
_FLOATING = _REDUCIBLE[:4]
_REDUCTIONS = ("allreduce", "reducescatter")
_BY_ROWS = ("allgather", "alltoall", "reducescatter")
_FREE_ROWS = ("allgather", "alltoall")
_CONTROL_ELEMENTS = 3  # Shares::kControlElements


def dtype_named(name: str) -> np.dtype:
    """Return NumPy's dtype of a name."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@dataclass
class Request:
    """Describe one run of a collective.

    Attributes:
        collective: its name.
        fields: the other words of its spec, by their keys.
        name: the user's name, or "".
        inputs: the arrays.
        splits: the rows per rank; empty: even shares.
    """

    collective: str
    fields: Mapping[str, str]
    name: str
    inputs: list[np.ndarray] = field(default_factory=list)
    splits: list[int] = field(default_factory=list)

    @classmethod
    def parse(cls, spec: str) -> Request:
        """Read the line of text that tf_ops/engine/spec.h describes."""
        head, _, name = spec.partition(" name=")
        collective, *pairs = head.split()
        return cls(collective, dict(pair.split("=", 1) for pair in pairs), name)

    @property
    def dtype(self) -> str:
        """The name of the arrays' dtype."""
        return self.fields.get("dtype", "uint8")

    @property
    def process_set(self) -> int:
        """The number of the process set."""
        return int(self.fields.get("set", 0))

    @property
    def prescale(self) -> float:
        """The factor before a reduction."""
        return float(self.fields.get("prescale", 1.0))

    @property
    def postscale(self) -> float:
        """The factor after a reduction; the mean of one rank has none more."""
        return float(self.fields.get("postscale", 1.0))

    @property
    def has_shares(self) -> bool:
        """Whether the first array is the control vector of a weighted average."""
        return "shares" in self.fields

    @property
    def title(self) -> str:
        """The collective and its name."""
        return self.collective + (f' "{self.name}"' if self.name else "")

    def describe(self) -> str:
        """Return the text that errors have for this call."""
        text = self.title
        if self.inputs:
            dims = [str(dim) for dim in self.inputs[0].shape]
            if self.collective in _FREE_ROWS and dims and "shapes" not in self.fields:
                dims[0] = "?"
            text += f" of {self.dtype}[{','.join(dims)}]"
        if len(self.inputs) > 1:
            text += f" and {len(self.inputs) - 1} more"
        if self.collective in _REDUCTIONS:
            text += f", op={self.fields['op']}"
        if "wire" in self.fields:
            text += f", compressed to {self.fields['wire']}"
        if self.fields.get("algorithm", "auto") != "auto":
            text += f", algorithm={self.fields['algorithm']}"
        for factor in ("prescale", "postscale"):
            if (value := float(self.fields.get(factor, 1.0))) != 1.0:
                text += f", {factor}={value:.9g}"
        if self.collective == "broadcast":
            text += f", root={self.fields['root']}"
        return text

    def check(self) -> None:
        """Raise for an argument that the collective cannot use."""
        if why := self._rejection():
            raise refused(self.describe(), why, self.process_set)

    def _rejection(self) -> str:
        if self.collective in _REDUCTIONS and (why := self._rejection_of_reduction()):
            return why
        if self.collective == "broadcast" and (root := int(self.fields["root"])):
            return f"expected a root rank from 0 to 0, received {root}"
        if self.collective in _BY_ROWS:
            return next(filter(None, map(self._rejection_of_rows, self.inputs)), "")
        return ""

    def _rejection_of_reduction(self) -> str:
        if self.dtype not in _REDUCIBLE:
            return (
                f"expected a dtype that can be reduced ({', '.join(_REDUCIBLE)}), received "
                f"{self.dtype}; cast it first, or use allgather"
            )
        factors = (self.prescale, self.postscale) != (1.0, 1.0) or "mean" in self.fields
        if self.dtype not in _FLOATING and factors:
            return (
                "expected a floating dtype with op=Average, prescale_factor or postscale_factor, "
                f"received {self.dtype}, where the result would be cut off; use op=Sum and divide, "
                "or cast first"
            )
        return ""

    def _rejection_of_rows(self, array: np.ndarray) -> str:
        if array.ndim == 0:
            return (
                "expected an array of at least one dimension, received a scalar; reshape it to [1]"
            )
        if not self.splits:
            return ""
        if len(self.splits) != 1:
            return (
                "expected one split per rank of the process set (1), received "
                f"{len(self.splits)}: {self.splits}"
            )
        if self.splits[0] < 0:
            return f"expected splits of 0 or more, received {self.splits}"
        if self.splits[0] != len(array):
            return (
                f"expected splits that add up to the first dimension ({len(array)}), received "
                f"{self.splits}, which add up to {self.splits[0]}"
            )
        return ""

    def write(self, outputs: Sequence[np.ndarray]) -> None:
        """Write the results, each of the shape of its input, which may be the same memory."""
        for source, target in zip(self.inputs, outputs, strict=True):
            target[...] = self._scaled(source) if self.collective in _REDUCTIONS else source

    def _scaled(self, array: np.ndarray) -> np.ndarray:
        # Two bytes are multiplied as float32, and rounded once.
        kind = np.dtype(np.float32) if array.dtype.itemsize == 2 else array.dtype
        result = array
        with np.errstate(all="ignore"):
            for factor in (self.prescale, self.postscale):
                if factor != 1.0:
                    result = result.astype(kind, copy=False) * kind.type(factor)
            return result.astype(array.dtype, copy=False)

    def control(self) -> tuple[float, float, float]:
        """Return the control vector: the share, whether the rank is idle, and begins a step."""
        share, idle, mark = (float(number) for number in self._numbers(self.inputs[0]))
        return share, idle, mark

    def write_shares(self, outputs: Sequence[np.ndarray], stops: bool) -> None:
        """Write the results of a weighted average, and the answer to the control vector."""
        idle = self.control()[1]
        answer = (0.0 if idle else 1.0, round(idle), float(stops))
        for source, target in zip(self.inputs[1:], outputs[1:], strict=True):
            target[...] = 0 if idle else self._scaled(source)
        self._numbers(outputs[0])[:] = answer

    @staticmethod
    def _numbers(vector: np.ndarray) -> np.ndarray:
        """Return the three numbers of a control vector, which are float32 beside two bytes."""
        flat = vector.reshape(-1)
        if flat.dtype.itemsize == 2:
            flat = flat.view(np.float32)
        return flat[:_CONTROL_ELEMENTS]

    def input_bytes(self) -> int:
        """Return the bytes of all arrays."""
        return sum(math.prod(array.shape) * array.dtype.itemsize for array in self.inputs)


def refused(call: str, why: str, process_set: int = 0) -> Failure:
    """Return the failure of a call that every rank refuses, and so the only one.

    Args:
        call: the call in words.
        why: the reason.
        process_set: the number of its process set.
    """
    ranks = f" of process set {process_set}" if process_set else ""
    return Failure(
        MISMATCH,
        f"rank 0 | {call}: a rank{ranks} was given an argument that it cannot use\n"
        f"  rank 0: {call}, refused: {why}",
    )
