"""Compare lists of variables, tensors or arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def assert_all_close(
    values: Iterable[Any], expected: Iterable[Any], *, rtol: float = 0.0, atol: float = 0.0
) -> None:
    """Compare two lists in pairs, exactly if no tolerance is given."""
    for index, (value, reference) in enumerate(zip(values, expected, strict=True)):
        place = getattr(value, "path", f"item {index}")
        np.testing.assert_allclose(value, reference, rtol, atol, err_msg=place)
