"""What the scripts of Ray and Spark share; `cloudpickle` carries the trainings to the ranks."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from tests.elastic import functions

for module in (functions, sys.modules[__name__]):
    cloudpickle.register_pickle_by_value(module)  # ranks do not import the tests


def expect(
    kind: type[BaseException], text: str, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> None:
    """Call `function` and expect an error of this kind whose message contains `text`."""
    with pytest.raises(kind, match=re.escape(text)):
        function(*args, **kwargs)


def expect_one_loss(results: list[tuple[int, list[int], int]]) -> None:
    """Expect results of `add_up` on two ranks of which one was lost and came back."""
    ends = [(rank, sizes[-3:], rest) for rank, sizes, rest in results]
    assert ends == [(0, [2, 1, 2], 0), (1, [2, 1, 2], 0)], results
    print("lost and joined", flush=True)


def grow(folder: str, last_size: int) -> list[int]:
    """Train until the world has `last_size` ranks; return the sizes of all worlds.

    A file in `folder`, whose name is the size of a world, says that the world trains.
    """
    import ringar

    ringar.init()

    @ringar.elastic.run
    def train(state: ringar.elastic.ObjectState) -> None:
        state.sizes = [*state.sizes, ringar.size()]
        Path(folder, str(ringar.size())).touch()
        while ringar.size() < last_size:
            ringar.barrier()
            state.commit()
            time.sleep(0.05)

    state = ringar.elastic.ObjectState(sizes=[])
    train(state)
    sizes: list[int] = state.sizes
    return sizes
