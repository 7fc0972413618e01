"""A rank of a parameter server tells its first error to the others."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import ringar
from ringar.asynchronous.failures import Failures
from ringar.collectives.host_call import host_call
from ringar.errors import PeerLostError, RankError

pytestmark = [pytest.mark.ranks(2, 3), pytest.mark.usefixtures("initialized")]


def test_the_first_error_is_that_of_all(rank: int) -> None:
    failures = Failures(None, "ringar.ParameterServer", "failures/test")
    long = "no such column, ä" + 5000 * "."
    error: Exception = KeyError(long) if rank == 1 else PeerLostError("rank 1 has left")
    if rank == 1:
        failures.tell(error)
    ringar.barrier()
    if rank != 1:
        failures.tell(error)  # it follows from that of rank 1
    first = failures.first(error)
    if rank == 1:
        assert first is error
        return
    assert isinstance(first, RankError)
    assert isinstance(first, KeyError)
    text = str(first)
    expected = "ringar.ParameterServer: expected rank 1 to go on; received its error KeyError"
    assert text.startswith(f"rank {rank} | {expected}: 'no such column, ä"), text
    failure = ValueError("of this rank")
    assert failures.first(failure) is failure


@pytest.mark.parametrize("compiled", [False, True])
def test_an_error_in_a_step_is_that_of_its_function(compiled: bool) -> None:
    failure = PeerLostError("rank 1 has left")

    def fail(array: np.ndarray) -> list[np.ndarray]:
        raise failure

    @tf.function(jit_compile=compiled)
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        return host_call(fail, [x], [tf.TensorSpec([], tf.float32)], "test")

    failures = Failures(None, "ringar.ParameterServer", f"failures/step/{compiled}")
    with pytest.raises(tf.errors.OpError) as caught:
        step(tf.constant(1.0))
    assert failures.first(caught.value) is failure
