"""Every public name of Horovod is here with its parameters, or is in the table with a reason."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

from ringar.horovod import absent
from tests.horovod.names import ADDED, MORE, NAMES
from tests.plugin.jobs import ROOT

pytestmark = pytest.mark.ranks(1)

PAGE = ROOT / "docs" / "migrate-from-horovod.md"

#: The rows of "What differs" in docs/migrate-from-horovod.md, and the test of each.
DIFFERENCES = {
    "Averages over ranks with different batches": "test_differences::test_averages_weigh_batches",
    "`DistributedOptimizer` and its argument": "test_differences::test_the_object_itself",
    "The tape of `DistributedGradientTape`": "test_training::test_tape",
    "Equal rows of sparse gradients": "test_differences::test_equal_rows_are_added",
    "Averages of integers": "test_collectives::test_averages_of_integers_are_cut_off",
    "Gradients of Min, Max and Product": "test_collectives::test_gradients_of_extremes_are_those",
    "Sums of `Compression.fp16`": "test_differences::test_sums_of_float16_are_rounded_once",
    "Adasum on any number of ranks": "test_adasum::test_the_formula_holds_for_each_tensor",
    "Graphs of TensorFlow 1": "test_sessions::test_what_cannot_be_ordered_is_refused",
    "`join`": "test_training::test_join_serves_ranks_that_have_more_data",
    "`*_async`, `poll`, `synchronize`, `barrier`": "test_collectives::test_handles",
    "`size_op` and the other ops in elastic jobs": "test_elastic::test_training_goes_on",
    "`init(comm=)`": "test_job::test_init_refuses_some_of_the_ranks",
    "`add_process_set` after `init`": "test_job::test_collectives_of_a_process_set",
    "`start_timeline`, `stop_timeline`": "test_job::test_timeline",
    "`*_built`, `*_enabled`": "test_job::test_what_was_built",
    "`BroadcastGlobalVariablesCallback`": "test_callbacks::test_metrics_are_averaged_and_weights",
    "`layer.adapt` on one rank, or on each rank's own rows": (
        "../keras/test_layer_state::test_ranks_whose_layers_hold_other_things"
    ),
    "Momentum correction": "test_callbacks::test_momentum_is_corrected",
    "`logs` of the learning rate": "test_callbacks::test_a_constant_multiplier_is_exponential",
    "Names of `SyncBatchNormalization`": "test_differences::test_names_of_layers",
    "`load_model`": "test_training::test_models_are_loaded_with_a_distributed_optimizer",
    "Errors of ranks that disagree": "test_differences::test_errors_of_ranks_that_disagree",
    "Optimizers of TensorFlow 1": "test_training::test_wrong_arguments",
    "`run` with elastic arguments": "test_run::test_wrong_arguments",
    "`horovodrun`": "test_run::test_options",
    "Variables of the environment": "test_job::test_variables_that_are_read",
    "Autotune": "test_run::test_variables_of_autotune",
    "Names of Horovod that are absent": "test_names::test_absent_names_say_why",
}


def module_of(name: str) -> object:
    return importlib.import_module(f"ringar.horovod.{name}".rstrip("."))


def reasons(module: str) -> dict[str, str]:
    return absent.ABSENT.get(module, {})


def parameters_of(text: str) -> list[tuple[str, object]]:
    """Return names and defaults of parameters that are written down."""
    tensorflow = importlib.import_module("ringar.horovod.tensorflow")
    constants = {
        "ALL": tensorflow.global_process_set,
        "NONE": tensorflow.Compression.none,
        "Average": tensorflow.Average,
    }
    return listed(eval(f"lambda {text}: None", constants))


def listed(function: object) -> list[tuple[str, object]]:
    signature = inspect.signature(function)  # type: ignore[arg-type]
    return [(parameter.name, parameter.default) for parameter in signature.parameters.values()]


def test_names_have_horovods_parameters() -> None:
    for module, names in NAMES.items():
        for name, parameters in names.items():
            if name in reasons(module):
                continue
            function = getattr(module_of(module), name)
            if parameters is not None:
                pairs = [p for p in listed(function) if p[0] not in MORE.get(name, ())]
                if name == "run_fn":  # the second argument may be left out
                    pairs = [(p, inspect.Parameter.empty) for p, _ in pairs]
                assert pairs == parameters_of(parameters), f"{module}.{name}"


def test_absent_names_say_why() -> None:
    text = PAGE.read_text()
    for module, names in absent.ABSENT.items():
        assert names.keys() <= NAMES[module].keys()
        for name, why in names.items():
            with pytest.raises(AttributeError, match=re.escape(why)):
                getattr(module_of(module), name)
            if hasattr(module_of(module), "__path__"):
                package = f"ringar.horovod.{module}".rstrip(".")
                for statement in (f"from {package} import {name}", f"import {package}.{name}"):
                    with pytest.raises(ImportError, match=re.escape(why)):
                        exec(statement)
            path = f"horovod.{module}.{name}".replace("..", ".")
            assert f"`{path}`" in text, path
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        getattr(module_of("tensorflow"), "nothing")  # noqa: B009


def test_the_page_has_every_name() -> None:
    mentioned = set(re.findall(r"[\w]+", " ".join(re.findall(r"`([^`\n]+)`", PAGE.read_text()))))
    names = {name for names in NAMES.values() for name in names}
    names |= {name for added in ADDED.values() for name in added}
    assert names <= mentioned, sorted(names - mentioned)


def test_all_lists_what_horovod_has() -> None:
    for module in ("tensorflow", "tensorflow.mpi_ops", "tensorflow.keras", "keras"):
        public = set(module_of(module).__all__)  # type: ignore[attr-defined]
        expected = set(NAMES[module]) | set(ADDED.get(module, ()))
        assert public == expected - reasons(module).keys()
        for name in public:
            assert hasattr(module_of(module), name)


def test_every_difference_has_a_test() -> None:
    section = PAGE.read_text().partition("## What differs\n")[2].partition("\n## ")[0]
    rows = [
        line.split(" | ")[0].removeprefix("| ")
        for line in section.splitlines()
        if line.startswith("| ") and not line.startswith("| |")
    ]
    assert rows == list(DIFFERENCES)
    for place in DIFFERENCES.values():
        file, name = place.split("::")
        tree = ast.parse((Path(__file__).parent / f"{file}.py").read_text())
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert any(function.startswith(name) for function in functions), place
