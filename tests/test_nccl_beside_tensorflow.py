"""NCCL that ringar opens calls its own functions, not those that TensorFlow's libraries export.

Up to 2.20 TensorFlow's wheels for GPUs contain an NCCL. NCCL calls some of its functions through
the dynamic linker, which prefers those of a library for all. This shows without a GPU:
`ncclCommCount` asks `ncclCommGetAsyncError`, which checks both ends of the communicator, and their
distance is that of one version.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import compiler
from tests.elf import exports
from tests.plugin.jobs import ROOT

pytestmark = [pytest.mark.job, pytest.mark.slow, pytest.mark.deadline(1500)]

LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")
SUCCESS, INVALID_ARGUMENT = "0", "4"

#: Opens NCCL as ringar does or plainly, after TensorFlow's libraries; prints what `ncclCommCount`
#: says of a forged communicator.
PROGRAM = r"""
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "links/library.h"

constexpr uint64_t kMagic = 0x0280028002800280;  // at both ends of ncclComm
constexpr size_t kWords = 1 << 20, kBytes = 1 << 20;
// Memory of zeros whose address is 0 in its lower half: as a pointer it may be followed, as an
// ncclResult_t it is ncclSuccess.
void* const kZeros = reinterpret_cast<void*>(uint64_t{1} << 32);

using Ask = int (*)(uint64_t* comm, int* answer);
Ask error_of, count_of;

int error_with(std::vector<uint64_t>& comm, int* result) {
  int error = -1;
  *result = error_of(comm.data(), &error);
  return error;
}

// The number of words from one end of a communicator to the other, as NCCL itself sees it.
size_t length(int* result) {
  size_t least = 1, most = kWords;
  while (least < most) {
    const size_t middle = (least + most) / 2;
    std::vector<uint64_t> comm(kWords, 0);
    for (size_t i = 0; i < middle; ++i) comm[i] = kMagic;
    error_with(comm, result);
    (*result == 0 ? most : least) = *result == 0 ? middle : middle + 1;
  }
  return least;
}

int main(int argc, char** argv) {
  const std::string how = argv[1], nccl = argv[2];
  for (int i = 3; i < argc; ++i)
    if (!dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL)) return std::puts(dlerror()), 1;
  ringar::Library library("NCCL", "");
  void* const handle = how == "plain" ? dlopen(nccl.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (how != "plain" && !library.open(nccl).ok()) return 2;
  const auto find = [&](const char* name) {
    return reinterpret_cast<Ask>(handle ? dlsym(handle, name) : library.find(name));
  };
  error_of = find("ncclCommGetAsyncError");
  count_of = find("ncclCommCount");
  if (!error_of || !count_of) return 3;
  if (mmap(kZeros, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != kZeros)
    return 4;

  int result = 0;
  const size_t words = length(&result);
  std::vector<uint64_t> comm(kWords, reinterpret_cast<uint64_t>(kZeros));
  comm[0] = comm[words - 1] = kMagic;
  // The result of the communicator may be the upper half of a word: that one is 0 then.
  for (size_t i = 1; error_with(comm, &result) != 0 && i < kWords; ++i) {
    const uint64_t word = comm[i];
    if (word == kMagic) continue;
    comm[i] = 0;
    if (error_with(comm, &result) != 0) comm[i] = word;
  }
  if (result != 0) return 5;
  int count = 0;
  std::printf("%d", count_of(comm.data(), &count));
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, compiled."""
    folder = tmp_path_factory.mktemp("program")
    source, program = folder / "program.cc", folder / "program"
    source.write_text(PROGRAM)
    tf_ops = ROOT / "tf_ops"
    command = [compiler.path(), "-std=c++17", f"-I{tf_ops}", "-o", str(program), str(source)]
    subprocess.run([*command, str(tf_ops / "links/library.cc"), "-ldl"], check=True, timeout=110)
    return program


def count(program: Path, how: str, nccl: Path, libraries: list[Path]) -> str:
    command = [str(program), how, *map(str, (nccl, *libraries))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("how", ["plain", "ringar"])
def test_forged_communicator_is_right_alone(program: Path, nccl_wheel: Path, how: str) -> None:
    assert count(program, how, nccl_wheel / "lib" / "libnccl.so.2", []) == SUCCESS


def test_nccl_calls_itself(program: Path, nccl_wheel: Path, tensorflow_folder: Path) -> None:
    paths = [tensorflow_folder / name for name in LIBRARIES]
    libraries = [path for path in paths if exports(path, ["ncclCommGetAsyncError"])]
    if not libraries:
        pytest.skip(f"{tensorflow_folder} has no NCCL")
    nccl = nccl_wheel / "lib" / "libnccl.so.2"
    assert count(program, "ringar", nccl, libraries) == SUCCESS
    # An NCCL of its own: from 2.21 on TensorFlow exports functions that look for NCCL instead.
    if any(exports(path, ["_Z9CommCheckP8ncclCommPKcS2_"]) for path in libraries):
        assert count(program, "plain", nccl, libraries) == INVALID_ARGUMENT
