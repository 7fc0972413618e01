"""Libraries that ringar opens, where others export functions of the same names for all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import compiler
from tests.plugin.jobs import ROOT

LIBRARY = """
int version(void) { return VERSION; }
int answer(void) { return version(); }
"""

# As tcmalloc does, it comes before the C library's.
ALLOCATOR = """
#include <stddef.h>
void* __libc_malloc(size_t);
void* malloc(size_t bytes) { return __libc_malloc(bytes); }
"""

# Opens a library for all, and then ringar's; says which functions the second one calls.
PROGRAM = r"""
#include <dlfcn.h>
#include <cstdio>
#include <cstring>
#include "links/library.h"

int main(int, char** argv) {
  if (!dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL)) return 1;
  if (std::strcmp(argv[3], "early") == 0 && !dlopen(argv[2], RTLD_NOW)) return 2;
  ringar::Library library("NCCL", "");
  if (!library.open(argv[2]).ok()) return 3;
  const auto answer = reinterpret_cast<int (*)()>(library.find("answer"));
  std::printf("%d %d\n", answer(), library.calls_itself());
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the program, two libraries and an allocator."""
    folder = tmp_path_factory.mktemp("libraries")

    def build(name: str, text: str, *options: str) -> None:
        source = folder / f"{name}.{'cc' if name == 'program' else 'c'}"
        source.write_text(text)
        words = [compiler.path(), *options, "-o", str(folder / name), str(source), "-ldl"]
        subprocess.run(words, check=True, timeout=110)

    library = ("-xc", "-shared", "-fPIC")
    build("first", LIBRARY, *library, "-DVERSION=1")
    build("second", LIBRARY, *library, "-DVERSION=2")
    build("allocator", ALLOCATOR, *library)
    tf_ops = ROOT / "tf_ops"
    build("program", PROGRAM, "-std=c++17", f"-I{tf_ops}", str(tf_ops / "links/library.cc"))
    return folder


@pytest.mark.parametrize(
    ("early", "allocator", "expected"),
    [("", "", "2 1"), ("early", "", "1 0"), ("", "allocator", "1 0")],
    ids=["opened by ringar", "opened before", "another allocator"],
)
def test_a_library_calls_itself(folder: Path, early: str, allocator: str, expected: str) -> None:
    """Where it does not surely do so, `calls_itself` is false."""
    environ = {**os.environ, "LD_PRELOAD": str(folder / allocator) if allocator else ""}
    command = [*(str(folder / name) for name in ("program", "first", "second")), early]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, expected), done.stderr
