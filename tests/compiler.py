"""The C++ compiler of the machine, for tests that build or check sources."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def path() -> str:
    """Return the compiler's path; without one, skip the test."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    return compiler


def check(source: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Check a source in the folder for errors and warnings, without code as the result."""
    file = folder / "check.cc"
    file.write_text(source)
    command = [path(), "-std=c++17", "-fsyntax-only", "-Werror", *options, str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
