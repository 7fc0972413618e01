"""Which variants of a test are run by `make test`, said where the variants are listed."""

from __future__ import annotations

from typing import Any

import pytest


def fast_if(condition: object, *values: Any) -> Any:
    """Returns the values of a variant for `parametrize`, slow unless the condition holds."""
    return pytest.param(*values, marks=[] if condition else [pytest.mark.slow])
