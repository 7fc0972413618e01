"""Loads the test plugin; see tests/plugin/__init__.py and CONTRIBUTING.md."""

import os

from tests.plugin.site import sitecustomize

# XLA compiles in two thirds of the time. `make test-long` compiles as users do.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

# The tests' ranks leave the user's calibration alone; those that test it ask for one.
os.environ.setdefault("RINGAR_CALIBRATION", "off")

# Tests give Keras tables of pandas; jobs do not.
sitecustomize.HIDDEN.discard("pandas")

pytest_plugins = [
    "tests.plugin.deadline",
    "tests.plugin.selection",
    "tests.plugin.fixtures",
    "tests.plugin.ranks",
    "tests.plugin.wheels",
]
