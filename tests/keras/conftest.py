from __future__ import annotations

from collections.abc import Iterator

import keras
import pytest


@pytest.fixture
def mixed_float16() -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(before)
