"""Every function raises an error before init and after shutdown."""

from __future__ import annotations

import pytest

import ringar
from tests.faults.outcomes import Outcomes

pytestmark = pytest.mark.job

RANKS = None  # without the launcher

MODES = ["numpy", "eager", "function", "compiled"]
COLLECTIVES = [
    "allreduce",
    "grouped_allreduce",
    "allgather",
    "grouped_allgather",
    "reducescatter",
    "grouped_reducescatter",
    "broadcast",
    "grouped_broadcast",
    "alltoall",
    "barrier",
    "send",
    "recv",
]
OTHERS = [
    "rank",
    "size",
    "local_rank",
    "local_size",
    "cross_rank",
    "cross_size",
    "add_process_set",
    "remove_process_set",
    "ProcessSet.rank",
    "ProcessSet.included",
    "broadcast_object",
    "allgather_object",
    "broadcast_variables",
    "start_timeline",
    "slices",
    "train",
    "differentiate",
    "shard",
    "sharded_weights",
    "LocalSGD",
    "DiLoCo",
    "EASGD",
    "Codistillation",
    "Hogwild",
    "ParameterServer",
    "Window",
    "Lasso",
    "MatrixFactorization",
]
ON_GPUS = [*COLLECTIVES[: COLLECTIVES.index("barrier")], "synchronize"]
#: Functions that need no init, or ("train") are tried by another name.
FREE = {
    *("init", "shutdown", "is_initialized", "stop_timeline", "DistributedOptimizer"),
    *("stats", "reset_stats", "run", "empty", "memory_report"),
    "gather_together",
    # These take what there is after init only, begin with a collective, or ask for the rank.
    *("Downpour", "autotune", "join", "load_model", "predict", "separate_seeds", "set_random_seed"),
}
#: Of ringar.cupy.
FREE_ON_GPUS = {"scan"}


def test_the_process_ends_well(outcomes: Outcomes) -> None:
    outcomes.job.check()


def test_every_public_function_is_tried() -> None:
    functions = {
        name
        for name in dir(ringar)
        if callable(getattr(ringar, name)) and not isinstance(getattr(ringar, name), type)
    }
    assert functions - FREE <= {*COLLECTIVES, *OTHERS}
    assert set(dir(ringar.cupy)) - FREE_ON_GPUS == set(ON_GPUS)


@pytest.mark.parametrize("when", ["before init", "after shutdown"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_collectives(outcomes: Outcomes, collective: str, mode: str, when: str) -> None:
    (outcome,) = outcomes.of(f"{when}: {collective}, {mode}")
    name = collective.removeprefix("grouped_")
    outcome.expect("NotInitializedError", f"call ringar.init() before ringar.{name}()")


@pytest.mark.parametrize("when", ["before init", "after shutdown"])
@pytest.mark.parametrize("name", ON_GPUS)
def test_collectives_on_gpus(outcomes: Outcomes, name: str, when: str) -> None:
    """They say so where there is no CuPy, too."""
    (outcome,) = outcomes.of(f"{when}: cupy.{name}")
    outcome.expect("NotInitializedError", f"call ringar.init() before ringar.cupy.{name}()")


@pytest.mark.parametrize("when", ["before init", "after shutdown"])
@pytest.mark.parametrize("name", OTHERS)
def test_functions(outcomes: Outcomes, name: str, when: str) -> None:
    (outcome,) = outcomes.of(f"{when}: {name}")
    outcome.expect("NotInitializedError", "call ringar.init() ")


@pytest.mark.parametrize("scenario", ["shutdown", "works", "init twice", "works after that"])
def test_what_may_be_called_at_any_time(outcomes: Outcomes, scenario: str) -> None:
    outcomes.expect_success(scenario)


@pytest.mark.parametrize(
    ("mode", "kind"), [("function", "FailedPreconditionError"), ("compiled", "InternalError")]
)
def test_functions_traced_earlier(outcomes: Outcomes, mode: str, kind: str) -> None:
    (outcome,) = outcomes.of(f"traced: {mode}")
    outcome.expect(kind, "ringar is not initialized: call ringar.init() before allreduce")
    outcomes.expect_success(f"traced: {mode}, initialized again")
