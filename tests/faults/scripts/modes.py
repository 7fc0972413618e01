"""The four ways to call a collective, for scenarios that must fail alike in each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.faults.job import attempt, works

Make = Callable[[Any], Any]
"""From a NumPy array to what the collective is given."""
Scenario = Callable[[Make], object]


def _as_it_is(array: Any) -> Any:
    return array


def _numpy(scenario: Scenario) -> None:
    scenario(_as_it_is)


def _eager(scenario: Scenario) -> None:
    scenario(tf.constant)


def _in_function(jit_compile: bool) -> Callable[[Scenario], None]:
    def run(scenario: Scenario) -> None:
        def traced() -> None:
            scenario(tf.constant)

        tf.function(traced, jit_compile=jit_compile, autograph=False)()

    return run


MODES: dict[str, Callable[[Scenario], None]] = {
    "numpy": _numpy,
    "eager": _eager,
    "function": _in_function(jit_compile=False),
    "compiled": _in_function(jit_compile=True),
}


def attempt_in_all_modes(scenarios: dict[str, Scenario], modes: list[str] | None = None) -> None:
    """Attempts each scenario in each mode; after each, the job must still work.

    They are recorded as "<scenario>, <mode>" and "after <scenario>, <mode>".
    """
    for name, scenario in scenarios.items():
        for mode in modes or MODES:
            attempt_in(mode, name, scenario)


def attempt_in(mode: str, name: str, scenario: Scenario) -> None:
    """Attempts one scenario in one mode, and then whether the job still works."""
    attempt(f"{name}, {mode}", lambda: MODES[mode](scenario))
    attempt(f"after {name}, {mode}", works)


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """An array of ones."""
    return np.ones(shape, dtype)
