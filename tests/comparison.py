"""Compare lists of variables, tensors or arrays, and what the ranks have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np


def assert_all_close(
    values: Iterable[Any], expected: Iterable[Any], *, rtol: float = 0.0, atol: float = 0.0
) -> None:
    """Compare two lists in pairs, exactly if no tolerance is given."""
    for index, (value, reference) in enumerate(zip(values, expected, strict=True)):
        place = getattr(value, "path", f"item {index}")
        np.testing.assert_allclose(value, reference, rtol, atol, err_msg=place)


def assert_same_everywhere(value: Any, exchange: Callable[[Any], list[Any]]) -> None:
    """Compare a value with those of the other ranks. Collective."""
    answers = exchange(value)
    assert all(answer == answers[0] for answer in answers)
