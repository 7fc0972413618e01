from __future__ import annotations

from collections.abc import Callable, Iterator

import keras
import pytest


@pytest.fixture
def mixed_float16() -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(before)


@pytest.fixture
def policy() -> Iterator[Callable[[str], None]]:
    """A function that sets the global dtype policy for one test."""
    before = keras.config.dtype_policy()
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy(before)
