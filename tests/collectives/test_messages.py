"""What errors say, where that takes care; which error comes when: tests/faults."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import ringar
from tests.collectives import common

ERRORS = (ringar.errors.MismatchError, tf.errors.OpError)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("name", ["ä" * 52, "x" + "€" * 200, "plain"])
def test_names_of_any_length_and_script(mode: str, name: str) -> None:
    """A name is cut off in messages, but not in the middle of a character."""
    array = np.ones(2 + ringar.rank(), np.float32)
    with pytest.raises(ERRORS) as caught:
        common.run(mode, lambda t: [ringar.allreduce(t, ringar.Sum, name=name)], array)
    message = str(caught.value)
    assert f"rank {ringar.rank()} | allreduce" in message
    assert f'"{name[:30]}' in message
    assert f'rank 1: allreduce "{name[:30]}' in message


@pytest.mark.ranks(2, 3, 4)
def test_names_that_differ_late_are_different(mode: str) -> None:
    name = "n" * 500 + str(ringar.rank())
    with pytest.raises(ERRORS, match="expected the same collective"):
        common.run(mode, lambda t: [ringar.allreduce(t, name=name)], np.ones(1, np.float32))


def test_blanks_in_names(mode: str) -> None:
    """The spec is one line: line breaks and the like become blanks, on all ranks alike."""
    name = "a\nname \t name=with dtype=odd things "
    result = common.run(
        mode, lambda t: [ringar.allreduce(t, ringar.Sum, name=name)], np.ones(2, np.float32)
    )
    assert result[0].tolist() == [ringar.size()] * 2
    with tf.GradientTape() as tape:
        x = tf.ones([2])
        tape.watch(x)
        y = ringar.allreduce(x, ringar.Sum, name=name)
    assert tape.gradient(y, x).numpy().tolist() == [ringar.size()] * 2
