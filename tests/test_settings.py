"""The table of variables of the environment has all that are read or set, and no other."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from ringar.job import settings

ROOT = Path(__file__).resolve().parents[1]
# In Python any string is one that is read or set; in C++ the environment is asked for it.
EXPRESSIONS = {"*.py": r'"(RINGAR_[A-Z_]+)"', "*.cc": r'getenv\("(RINGAR_[A-Z_]+)"'}


def test_the_table_has_the_variables_of_the_sources() -> None:
    in_sources = {
        name
        for folder in ("ringar", "launchers", "tf_ops")
        for pattern, expression in EXPRESSIONS.items()
        for file in (ROOT / folder).rglob(pattern)
        if "cupy" not in file.parts  # its kernels have macros of such names
        for name in re.findall(expression, file.read_text())
    }
    assert in_sources | {"RINGAR_RANK"} == settings.names()
    for setting in (*settings.OF_USERS, *settings.OF_THE_LAUNCHER):
        reader = setting.reader
        path = f"tf_ops/{reader}" if "/" in reader else f"ringar/{reader.replace('.', '/')}.py"
        assert (ROOT / path.replace("ringar/launchers", "launchers")).exists(), setting


def test_a_variable_that_nobody_reads_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="ringar"):
        settings.warn_of_unknown(
            ["PATH", "RINGAR_DEADLINE", "RINGAR_DEADLIN", "RINGAR_XYZ", "RINGAR_TEST_GPU"]
        )
    assert [record.getMessage() for record in caplog.records] == [
        "no variable RINGAR_DEADLIN is known; did you mean RINGAR_DEADLINE?",
        "no variable RINGAR_XYZ is known",
    ]
