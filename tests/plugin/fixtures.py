"""Fixtures: a running ringar, and ways to compare ranks without ringar."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.place import RANK, SIZE

# A collective without one of its ranks fails well before the test's own deadline (120 s).
DEADLINE = 60.0
STALL_WARNING = 10.0


def initialize() -> None:
    """Call `ringar.init()` with times for tests."""
    import ringar

    ringar.init(deadline=DEADLINE, stall_warning=STALL_WARNING, start_timeout=DEADLINE)


def is_initialized() -> bool:
    """Return whether ringar runs here, without importing it."""
    return "ringar" in sys.modules and sys.modules["ringar"].is_initialized()


def has_tensorflow_begun() -> bool:
    """Return whether an op of TensorFlow has run here, without importing it."""
    if "tensorflow" not in sys.modules:
        return False
    from tensorflow.python.eager import context

    return context.context()._context_handle is not None


def leave() -> None:
    """Shut ringar down on this rank alone."""
    import ringar

    ringar.shutdown()


def restart() -> None:
    """Shut ringar down if it runs, and start it again. Collective."""
    leave()
    initialize()


def quicken() -> None:
    """Take time away from the tests that they do not need.

    A `tf.data` iterator that tunes itself waits at its end, up to a minute and with the GIL: its
    thread may miss that it is to stop (`CancellationManager` wakes it before it says so). And
    whole collections of garbage visit each time what imports have made. Each op of a graph keeps
    the stack that made it, a tenth of the time of a trace: pytest's is deep. Grappler takes a
    third of the time until a small model's first step: it rewrites graphs on 4 ranks, in
    jobs and in `make test-long`, which leaves `XLA_FLAGS` empty, as it does for users.
    """
    import keras  # noqa: F401
    import tensorflow as tf
    from tensorflow.python.data.ops import dataset_ops
    from tensorflow.python.framework import ops

    def untuned(dataset: Any) -> Any:
        options = tf.data.Options()
        options.autotune.enabled = False
        return dataset_ops._OptionsDataset(dataset, options)

    # Called for each dataset that is iterated over.
    dataset_ops.DatasetV2._apply_debug_options = untuned
    ops._create_c_op = functools.partial(ops._create_c_op, extract_traceback=False)
    if SIZE < 4 and os.environ.get("XLA_FLAGS"):
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope="session")
def initialized() -> Iterator[None]:
    """Run ringar: on all ranks under ringarrun, as a job of one rank in plain pytest."""
    import ringar

    quicken()
    if not ringar.is_initialized():
        initialize()
    yield
    ringar.shutdown()


@pytest.fixture
def rank() -> int:
    """Return this process' rank."""
    return RANK


@pytest.fixture
def size() -> int:
    """Return the number of ranks: 1 in plain pytest."""
    return SIZE


@pytest.fixture
def exchange(request: pytest.FixtureRequest) -> Callable[[Any], list[Any]]:
    """Return a function that gathers a value from every rank, in rank order, without ringar."""
    hub = getattr(request.config, "ringar_hub", None)
    count = itertools.count()

    def run(value: object) -> list[Any]:
        if hub is None:
            return [value]
        return list(
            hub.exchange(f"exchange {next(count)} of {request.node.nodeid}", value, optional=True)
        )

    return run


@pytest.fixture
def shared_tmp_path(tmp_path: Path, exchange: Callable[[Any], list[Any]]) -> Path:
    """Return a folder of this test that is the same on all ranks: rank 0's tmp_path."""
    path: Path = exchange(tmp_path)[0]
    return path
