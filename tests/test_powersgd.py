"""PowerSGD's plan: which gradients are compressed, as what, and how many bytes that takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ringar.collectives.compression import Compression
from ringar.collectives.powersgd import PowerSGD, matrix_shape

pytestmark = pytest.mark.ranks(1)


@pytest.mark.parametrize(
    ("shape", "matrix"),
    [
        ((512, 256), (512, 256)),  # a dense layer
        ((3, 3, 64, 128), (576, 128)),  # a convolution: its last dimension is that of its outputs
        ((512, 8, 64), (512, 512)),  # heads of attention: into them
        ((8, 64, 512), (512, 512)),  # and out of them
        ((7, 1), (7, 1)),
    ],
)
def test_tensors_as_matrices(shape: tuple[int, ...], matrix: tuple[int, int]) -> None:
    assert matrix_shape(shape) == matrix


def test_what_is_compressed() -> None:
    settings = PowerSGD(rank=2)
    assert settings.factor_rank((100, 100)) == 2
    assert settings.factor_rank((100, 100), "float64") == 2
    for shape in ((), (100,), (8, 7), (0, 100), (100, 1)):
        assert settings.factor_rank(shape) == 0, shape
    for dtype in ("float16", "bfloat16", "int32"):
        assert settings.factor_rank((100, 100), dtype) == 0, dtype


def test_the_rate_is_a_limit() -> None:
    # 8 x 8 with rank 2 is 64 elements against 2 (8 + 8) = 32: half of it, and not less.
    assert PowerSGD(rank=2, min_compression_rate=2.0).factor_rank((8, 8)) == 2
    assert PowerSGD(rank=2, min_compression_rate=2.01).factor_rank((8, 8)) == 0
    # No more columns than there can be in a basis.
    assert PowerSGD(rank=50, min_compression_rate=0.01).factor_rank((8, 3)) == 3


def test_bytes() -> None:
    settings = PowerSGD(rank=2)
    assert settings.sent_bytes([]) == 0
    assert settings.sent_bytes([(512, 512)]) == 2 * (512 + 512) * 4
    assert settings.sent_bytes([(512, 512)], "float64") == 2 * (512 + 512) * 8
    assert settings.sent_bytes([(3, 3, 64, 128), (128,), (), (4, 4)]) == 4 * (
        2 * (576 + 128) + 128 + 1 + 16
    )


def test_first_q_is_a_function_of_seed_and_place() -> None:
    settings = PowerSGD(seed=3)
    first = settings.first_q(0, 5, 2)
    assert first.shape == (5, 2)
    assert np.linalg.matrix_rank(first) == 2
    np.testing.assert_array_equal(first, PowerSGD(seed=3).first_q(0, 5, 2))
    assert not np.array_equal(first, settings.first_q(1, 5, 2))
    assert not np.array_equal(first, PowerSGD(seed=4).first_q(0, 5, 2))


@pytest.mark.parametrize(
    ("settings", "argument"),
    [
        ({"rank": 0}, "rank"),
        ({"rank": 1.5}, "rank"),
        ({"rank": True}, "rank"),
        ({"min_compression_rate": 0.0}, "min_compression_rate"),
        ({"min_compression_rate": float("nan")}, "min_compression_rate"),
    ],
)
def test_bad_settings(settings: dict[str, Any], argument: str) -> None:
    with pytest.raises(ValueError, match=rf"`{argument}` must be .* Received: {argument}="):
        Compression.powersgd(**settings)
