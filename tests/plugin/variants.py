"""Variants of a test that `make test` runs, marked where a test lists them."""

from __future__ import annotations


def fast_if(condition: object, *values: object) -> object:
    """Return the values of a variant for `parametrize`, slow unless the condition holds."""
    import pytest  # here, for benchmarks use `tests.plugin.jobs` without pytest

    return pytest.param(*values, marks=[] if condition else [pytest.mark.slow])
