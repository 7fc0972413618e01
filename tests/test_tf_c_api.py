"""tf_ops/kernels/tf_c_api.h says what TensorFlow's own headers say.

ringar builds without TensorFlow, from its own declarations of the C API. A declaration that drifts
from TensorFlow's would crash, or worse; the compiler finds it when it sees both.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests import compiler
from tests.elf import exports
from tests.plugin.jobs import ROOT

HEADER = ROOT / "tf_ops" / "kernels" / "tf_c_api.h"
TENSORFLOW_HEADERS = ["c_api", "kernels", "ops", "tf_datatype", "tf_status", "tf_tensor"]
LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")


def compile_source(source: str, folder: Path, include: Path) -> subprocess.CompletedProcess[str]:
    return compiler.check(source, folder, "-isystem", str(include), f"-I{ROOT / 'tf_ops'}")


def declared() -> list[str]:
    """Returns the names of the functions that the header declares."""
    text = re.sub(r"//[^\n]*", "", HEADER.read_text())
    return re.findall(r"^(?:\w+[ *]+)+(TF_\w+)\(.*?\);", text, re.MULTILINE | re.DOTALL)


def source(header: str) -> str:
    """Returns a program that TensorFlow's headers and `header`, one after the other, must allow."""
    lines = [f"#include <tensorflow/c/{name}.h>" for name in TENSORFLOW_HEADERS]
    # Before ours: a function that TensorFlow does not declare is unknown here.
    lines += [f"using check_{name} = decltype(&{name});" for name in declared()]
    lines += ["#define RINGAR_USE_TENSORFLOW_HEADERS", header]
    return "\n".join([*lines, ""])


def enumerators() -> str:
    """Returns checks of the numbers that stand in our header's own enumerations."""
    pairs = re.findall(r"\b(TF_[A-Z0-9_]+) = (\d+)", HEADER.read_text())
    assert pairs
    return "\n".join(f"static_assert({name} == {value});" for name, value in pairs)


def test_declarations_agree_with_tensorflow(tensorflow_folder: Path, tmp_path: Path) -> None:
    program = source(f'#include "kernels/tf_c_api.h"\n{enumerators()}')
    result = compile_source(program, tmp_path, tensorflow_folder / "include")
    assert result.returncode == 0, result.stderr


def test_each_function_is_exported(tensorflow_folder: Path) -> None:
    """By one of the libraries in which `find_in_tensorflow` looks."""
    names = set(declared())
    libraries = [tensorflow_folder / name for name in LIBRARIES]
    assert set().union(*(exports(library, names) for library in libraries)) == names


def test_every_function_that_is_looked_up_is_declared() -> None:
    looked_up = re.findall(r"X\((TF_\w+)\)", HEADER.read_text())
    assert sorted(looked_up) == sorted(declared())


def test_the_header_stands_alone(tmp_path: Path) -> None:
    result = compile_source('#include "kernels/tf_c_api.h"\n', tmp_path, tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow  # the comparison itself
@pytest.mark.parametrize(
    ("right", "fault"),
    [
        ("int TF_NumDims(const TF_Tensor*);", "long TF_NumDims(const TF_Tensor*);"),
        ("TF_Dim(const TF_Tensor* tensor, int", "TF_Dim(const TF_Tensor* tensor, long"),
    ],
)
def test_a_wrong_declaration_is_found(
    tensorflow_folder: Path, tmp_path: Path, right: str, fault: str
) -> None:
    text = HEADER.read_text()
    assert right in text
    program = source(text.replace(right, fault).replace("#pragma once", ""))
    result = compile_source(program, tmp_path, tensorflow_folder / "include")
    assert result.returncode != 0
    name = right.partition("(")[0].split()[-1]
    assert name in result.stderr
