"""What the commands of `benchmarks` need: the extra `bench`, and an editable installation."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.plugin.jobs import ROOT

pytestmark = pytest.mark.job

#: Imports every module of `benchmarks` with the packages of tests hidden; prints each that fails.
IMPORTS = """
import importlib, pkgutil, sys
import benchmarks

for name in sys.argv[1:]:
    sys.modules[name] = None
for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        print(f"{module.name}: {error.name}")
    else:
        print(f"{module.name}: imported")
"""
#: Packages of the group `test` that the extra `bench` has not.
HIDDEN = ("pytest", "_pytest", "xdist", "sybil", "nbclient", "ipykernel", "jsonschema", "pandas")


@pytest.mark.deadline(200)
def test_no_benchmark_imports_packages_of_tests() -> None:
    job = subprocess.run(
        [sys.executable, "-c", IMPORTS, *HIDDEN],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    results = dict(re.findall(r"^(benchmarks[.\w]*): (\S+)$", job.stdout, re.MULTILINE))
    assert results["benchmarks.hosts.__main__"] == "imported"
    assert len(results) > 100
    # PyTorch runs in an environment of its own.
    assert set(results.values()) <= {"imported", "torch"}, results


#: As in a checkout beside an installed wheel: its folder ringar/ has no launchers.
HIDDEN_INSTALLATION = """
import runpy, sys

sys.modules["ringar.launchers"] = None
runpy.run_module("benchmarks", run_name="__main__")
"""


def test_an_installation_that_is_hidden_says_what_to_do() -> None:
    job = subprocess.run(
        [sys.executable, "-c", HIDDEN_INSTALLATION],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert job.returncode == 1
    assert job.stderr.count("\n") == 1
    assert "pip install --editable '.[tensorflow,bench]'" in job.stderr
