"""What users see when a collective fails that was enqueued already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ringar
from ringar.errors import DeviceError, MismatchError, PeerLostError, RingarError
from tests.cupy.collectives.common import Gpu, StandIn
from tests.plugin import fixtures

pytestmark = pytest.mark.ranks(2, 3, 4)

Exchange = Callable[[Any], list[Any]]


@pytest.fixture
def stand_in(gpu: Gpu) -> StandIn:
    if not isinstance(gpu, StandIn):
        pytest.skip("a real GPU does not fail when it is told to")
    return gpu


@pytest.fixture(autouse=True)
def _started_anew(stand_in: StandIn, exchange: Exchange) -> Iterator[None]:
    """The process set of all ranks does not survive what happens here."""
    yield
    exchange("all have seen it")
    fixtures.restart()
    ones = stand_in.put(np.ones(3, np.float32))
    assert ringar.cupy.allreduce(ones, ringar.Sum).get()[0] == ringar.size()
    assert ringar.allreduce(np.ones(3), ringar.Sum)[0] == ringar.size()


def run_and_wait(collective: Callable[..., Any], array: Any) -> None:
    """Raises at once, or when it is waited for: the failure may come while this rank enqueues."""
    result = collective(array, name="lost")
    assert np.isnan((result * np.float32(2)).get()).all()
    ringar.cupy.synchronize()


def test_an_error_of_nccl_on_one_rank(stand_in: StandIn, exchange: Exchange) -> None:
    array = stand_in.put(np.ones(5, np.float32))
    before = ringar.cupy.allreduce(array, ringar.Sum)
    ringar.cupy.synchronize()
    if ringar.rank() == 1:
        stand_in.driver.fail_later("ncclAllReduce", 1)
    kind = DeviceError if ringar.rank() == 1 else PeerLostError
    exchange("ready")
    with pytest.raises(kind, match=rf'rank {ringar.rank()} \| allreduce "lost"'):
        run_and_wait(ringar.cupy.allreduce, array)
    for _ in range(2):
        with pytest.raises(RingarError, match="lost"):
            ringar.cupy.broadcast(array)
    assert before.get().tolist() == [ringar.size()] * 5


class OutOfMemoryError(MemoryError):
    """As CuPy's."""


@pytest.fixture
def lose(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that calls a collective on a rank without memory for the result."""

    def no_memory(*_: Any) -> Any:
        raise OutOfMemoryError("no memory for this")

    def lose(collective: Callable[..., Any], array: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(stand_in.cupy, "empty", no_memory)
            with pytest.raises(OutOfMemoryError, match="no memory for this"):
                collective(array, name="lost")

    return lose


def test_no_memory_for_a_result_on_one_rank(
    stand_in: StandIn, lose: Callable[..., None], exchange: Exchange
) -> None:
    array = stand_in.put(np.ones((3, 2), np.float32))
    ringar.cupy.allgather(array)
    for collective in (ringar.cupy.allreduce, ringar.cupy.broadcast) * 2:  # all can go on
        if ringar.rank() == 1:
            lose(collective, array)
        else:
            with pytest.raises(MismatchError, match="rank 1: .* memory for every output"):
                collective(array, name="lost")
        collective(array, name="lost")  # the next time it repeats
        assert ringar.cupy.allreduce(array, ringar.Sum).get().max() == ringar.size()
    if ringar.rank() == 1:
        lose(ringar.cupy.allgather, array)
    else:
        with pytest.raises(PeerLostError, match="rank 1"):
            run_and_wait(ringar.cupy.allgather, array)
    with pytest.raises(RingarError):
        ringar.cupy.allgather(array)
