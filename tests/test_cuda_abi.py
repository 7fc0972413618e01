"""tf_ops/links/cuda_abi.h and nccl_abi.h say what the headers of CUDA and NCCL say.

ringar builds without both, from its own declarations, and looks functions up by name. A declaration
that drifts would crash, or worse; the compiler finds it when it sees both. Results and other enums
are `int` here: what is compared is what a caller and a function must agree on.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import compiler
from tests.plugin.jobs import ROOT

pytestmark = pytest.mark.job

LINKS = ROOT / "tf_ops/links"

#: Our constants, by header, with their names there.
CONSTANTS = {
    "cuda": {
        "kSuccess": "CUDA_SUCCESS",
        "kInvalidValue": "CUDA_ERROR_INVALID_VALUE",
        "kOutOfMemory": "CUDA_ERROR_OUT_OF_MEMORY",
        "kNotInitialized": "CUDA_ERROR_NOT_INITIALIZED",
        "kStubLibrary": "CUDA_ERROR_STUB_LIBRARY",
        "kDeviceUnavailable": "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "kNoDevice": "CUDA_ERROR_NO_DEVICE",
        "kNotLicensed": "CUDA_ERROR_DEVICE_NOT_LICENSED",
        "kEccError": "CUDA_ERROR_ECC_UNCORRECTABLE",
        "kNvlinkError": "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "kIllegalAddress": "CUDA_ERROR_ILLEGAL_ADDRESS",
        "kLaunchTimeout": "CUDA_ERROR_LAUNCH_TIMEOUT",
        "kLaunchFailed": "CUDA_ERROR_LAUNCH_FAILED",
        "kSystemNotReady": "CUDA_ERROR_SYSTEM_NOT_READY",
        "kDriverMismatch": "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "kCompatNotSupported": "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "kNoMps": "CUDA_ERROR_MPS_CONNECTION_FAILED",
        "kNotReady": "CUDA_ERROR_NOT_READY",
        "kNotSupported": "CUDA_ERROR_NOT_SUPPORTED",
        "kStreamNonBlocking": "CU_STREAM_NON_BLOCKING",
        "kEventDisableTiming": "CU_EVENT_DISABLE_TIMING",
        "kHostPortable": "CU_MEMHOSTALLOC_PORTABLE",
        "kHostDeviceMap": "CU_MEMHOSTALLOC_DEVICEMAP",
        "kWaitValueEqual": "CU_STREAM_WAIT_VALUE_EQ",
        "kCaptureNone": "CU_STREAM_CAPTURE_STATUS_NONE",
        "kCaptureRelaxed": "CU_STREAM_CAPTURE_MODE_RELAXED",
    },
    "nccl": {
        "kSuccess": "ncclSuccess",
        "kSystemError": "ncclSystemError",
        "kInternalError": "ncclInternalError",
        "kRemoteError": "ncclRemoteError",
        "kInProgress": "ncclInProgress",
        **{f"k{name}": f"nccl{name}" for name in ("Int8", "Uint8", "Int32", "Uint32", "Int64")},
        **{f"k{name}": f"nccl{name}" for name in ("Uint64", "Float16", "Float32", "Float64")},
        **{f"k{name}": f"nccl{name}" for name in ("Bfloat16", "Sum", "Prod", "Max", "Min", "Avg")},
        "kScalarHostImmediate": "ncclScalarHostImmediate",
        "kSplitNoColor": "NCCL_SPLIT_NOCOLOR",
    },
}
#: A version of ours, and a pointer, of which CUDA compares the text.
OUR_OWN = {"kOldestVersion", "kStreamPerThread"}

#: Types that agree: the same, or an enum for an int, or whole numbers of one size and sign; and so
#: on behind pointers and in functions.
AGREE = r"""
#include <cstddef>
#include <string_view>
#include <type_traits>

#define TEXT_OF(...) #__VA_ARGS__
#define TEXT(...) TEXT_OF(__VA_ARGS__)

template <class A, class B>
constexpr bool agree() {
  if constexpr (std::is_same_v<A, B>) return true;
  else if constexpr (std::is_enum_v<B>) return std::is_integral_v<A> && sizeof(A) == sizeof(B);
  else if constexpr (std::is_integral_v<A> && std::is_integral_v<B>)
    return sizeof(A) == sizeof(B) && std::is_signed_v<A> == std::is_signed_v<B>;
  else return false;
}
template <class A, class B>
struct Agree : std::bool_constant<agree<A, B>()> {};
template <class A, class B>
struct Agree<A*, B*>
    : std::bool_constant<std::is_const_v<A> == std::is_const_v<B> &&
                         Agree<std::remove_const_t<A>, std::remove_const_t<B>>::value> {};
template <class R, class S, class... A, class... B>
struct Agree<R(A...), S(B...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(A) == sizeof...(B))
      return Agree<R, S>::value && (Agree<A, B>::value && ...);
    else return false;
  }();
};
"""

CUDA = r"""
#include <cuda.h>
#define RINGAR_USE_CUDA_HEADERS
#include "links/cuda_abi.h"

namespace ringar::cuda {
static_assert(Agree<Result, CUresult>::value && Agree<Device, CUdevice>::value);
static_assert(Agree<Pointer, CUdeviceptr>::value);
static_assert(kOldestVersion <= CUDA_VERSION);
// A pointer, of which no compiler knows the value.
static_assert(std::string_view(TEXT(CU_STREAM_PER_THREAD)) == "((CUstream)0x2)");
// The header's macros say which version of a function its plain name means.
#define CHECK(name, exported, arguments)                                                     \
  static_assert(Agree<Result arguments, decltype(exported)>::value, "not " #exported);       \
  static_assert(std::string_view(TEXT(cu##name)) == #exported, "not the version of cu" #name);
RINGAR_CUDA_FUNCTIONS(CHECK)
"""

NCCL = r"""
#include <nccl.h>
#define RINGAR_USE_CUDA_HEADERS
#include "links/nccl_abi.h"

// What a function takes by pointer or value, and is a struct of our own.
template <>
struct Agree<ringar::nccl::UniqueId, ncclUniqueId> : std::true_type {};
template <>
struct Agree<ringar::nccl::Config, ncclConfig_t> : std::true_type {};

namespace ringar::nccl {
static_assert(Agree<Result, ncclResult_t>::value && Agree<DataType, ncclDataType_t>::value);
static_assert(Agree<RedOp, ncclRedOp_t>::value && Agree<Stream, cudaStream_t>::value);
static_assert(Agree<Comm, ncclComm_t>::value);
#define CHECK(name, exported, arguments)                                               \
  static_assert(Agree<Result arguments, decltype(exported)>::value, "not " #exported); \
  static_assert(std::string_view("nccl" #name) == #exported);
RINGAR_NCCL_FUNCTIONS(CHECK)
static_assert(Agree<const char*(Result), decltype(ncclGetErrorString)>::value);
static_assert(Agree<const char*(Comm), decltype(ncclGetLastError)>::value);

static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId) && sizeof(UniqueId) == NCCL_UNIQUE_ID_BYTES);
static_assert(alignof(UniqueId) == alignof(ncclUniqueId));

// Ours is where theirs begins, and is filled as theirs is.
constexpr Config kOurs;
constexpr ncclConfig_t kTheirs = NCCL_CONFIG_INITIALIZER;
#define FIELD(ours, theirs)                                                                      \
  static_assert(offsetof(Config, ours) == offsetof(ncclConfig_t, theirs), "not at " #theirs);      \
  static_assert(std::is_same_v<decltype(Config::ours), decltype(ncclConfig_t::theirs)>, "not " \
                #theirs);
#define SAME_FIELD(ours, theirs) \
  FIELD(ours, theirs)            \
  static_assert(kOurs.ours == kTheirs.theirs, "not the value of " #theirs);
FIELD(size, size)
SAME_FIELD(magic, magic)
FIELD(version, version)
SAME_FIELD(blocking, blocking)
SAME_FIELD(cga_cluster_size, cgaClusterSize)
SAME_FIELD(min_ctas, minCTAs)
SAME_FIELD(max_ctas, maxCTAs)
SAME_FIELD(net_name, netName)
SAME_FIELD(split_share, splitShare)
static_assert(kOurs.size == sizeof(Config) && sizeof(Config) <= sizeof(ncclConfig_t));
static_assert(kOurs.version == kOldestVersion && kOldestVersion <= NCCL_VERSION_CODE);
static_assert(NCCL_VERSION(2, 19, 0) == kOldestVersion);
"""

SOURCES = {"cuda": CUDA, "nccl": NCCL}

#: nccl.h includes the headers of the CUDA runtime, which lie in three packages, for these types.
RUNTIME = {
    "cuda_runtime.h": """
#pragma once
#include <cuda.h>
#define CUDART_VERSION 11000
using cudaStream_t = CUstream;
using cudaEvent_t = CUevent;
""",
    "cuda_fp16.h": "",
    "cuda_bf16.h": "#define __CUDA_BF16_TYPES_EXIST__\n",
}


def folders() -> list[Path]:
    """Where headers may be: in the packages that share the folder `nvidia`, and in CUDA's own."""
    spec = importlib.util.find_spec("nvidia")
    shared = [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ()]
    names = ("cuda_runtime", "nccl", "cu13")
    packages = [folder / name / "include" for folder in shared for name in names]
    return [*packages, Path("/usr/local/cuda/include"), Path("/usr/include")]


def headers_of(name: str, folder: Path) -> list[str]:
    """The compiler's options for finding what `name` needs; skips the test where one is missing."""
    runtime = folder / "runtime"
    runtime.mkdir()
    for header, text in RUNTIME.items():
        (runtime / header).write_text(text)
    options = ["-isystem", str(runtime)]
    for header in {"cuda": ["cuda.h"], "nccl": ["cuda.h", "nccl.h"]}[name]:
        places = [place for place in folders() if (place / header).is_file()]
        if not places:
            pytest.skip(f"no {header}: pip install nvidia-cuda-runtime-cu12 nvidia-nccl-cu12")
        options += ["-isystem", str(places[0])]
    return options


def constants(name: str) -> str:
    pairs = CONSTANTS[name].items()
    checks = [f"static_assert(int({constant}) == int({macro}));" for constant, macro in pairs]
    return "\n".join([*checks, "}", ""])


def compile_source(
    source: str, folder: Path, options: list[str], *, links: Path = LINKS
) -> subprocess.CompletedProcess[str]:
    warnings = ("-Wall", "-Wextra")
    return compiler.check(source, folder, *warnings, f"-I{links.parent}", *options)


@pytest.mark.parametrize("name", SOURCES)
def test_declarations_are_those_of_the_header(name: str, tmp_path: Path) -> None:
    source = AGREE + SOURCES[name] + constants(name)
    result = compile_source(source, tmp_path, headers_of(name, tmp_path))
    assert result.returncode == 0, result.stderr


@pytest.mark.slow  # wheels
def test_declarations_are_those_of_each_cuda(cuda_include: Path, tmp_path: Path) -> None:
    source = AGREE + CUDA + constants("cuda")
    result = compile_source(source, tmp_path, ["-isystem", str(cuda_include)])
    assert result.returncode == 0, result.stderr


@pytest.mark.slow  # wheels of 500 MB
@pytest.mark.deadline(900)
def test_declarations_are_those_of_each_nccl(nccl_wheel: Path, tmp_path: Path) -> None:
    source = AGREE + NCCL + constants("nccl")
    options = ["-isystem", str(nccl_wheel / "include"), *headers_of("cuda", tmp_path)]
    result = compile_source(source, tmp_path, options)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", SOURCES)
def test_every_constant_is_compared(name: str) -> None:
    text = re.sub(r"//[^\n]*", "", (LINKS / f"{name}_abi.h").read_text())
    assert set(re.findall(r"\b(k[A-Z]\w*) = ", text)) - OUR_OWN == set(CONSTANTS[name])


@pytest.mark.parametrize("name", SOURCES)
def test_the_header_stands_alone(name: str, tmp_path: Path) -> None:
    result = compile_source(f'#include "links/{name}_abi.h"\n', tmp_path, [])
    assert result.returncode == 0, result.stderr


@pytest.mark.slow  # the comparison itself
@pytest.mark.parametrize(
    ("name", "right", "fault", "complaint"),
    [
        ("cuda", "(int* count)", "(long* count)", "not cuDeviceGetCount"),
        ("cuda", "(Event event))", "(Stream event))", "not cuEventDestroy_v2"),
        ("cuda", "const void* from", "void* from", "not cuMemcpyHtoDAsync_v2"),
        ("cuda", "size_t bytes, unsigned flags", "unsigned flags", "not cuMemHostAlloc"),
        ("cuda", "cuMemFree_v2", "cuMemFree", "not the version of cuMemFree"),
        ("cuda", "Pointer = size_t", "Pointer = unsigned", "CUdeviceptr"),
        ("cuda", "kNotReady = 600", "kNotReady = 601", "CUDA_ERROR_NOT_READY"),
        ("cuda", "kOldestVersion = 12000", "kOldestVersion = 99000", "CUDA_VERSION"),
        ("nccl", "int root", "size_t root", "not ncclReduce"),
        ("nccl", "Comm* child", "Comm child", "not ncclCommSplit"),
        ("nccl", "internal[128]", "internal[64]", "sizeof"),
        ("nccl", "int min_ctas", "long min_ctas", "not minCTAs"),
        ("nccl", "0xcafebeef", "0xcafebabe", "not the value of magic"),
        ("nccl", "kBfloat16 = 9", "kBfloat16 = 10", "ncclBfloat16"),
    ],
)
def test_a_wrong_declaration_is_found(
    name: str, right: str, fault: str, complaint: str, tmp_path: Path
) -> None:
    options = headers_of(name, tmp_path)
    links = tmp_path / "links"
    shutil.copytree(LINKS, links)
    header = links / f"{name}_abi.h"
    text = header.read_text()
    assert right in text
    header.write_text(text.replace(right, fault))
    source = AGREE + SOURCES[name] + constants(name)
    result = compile_source(source, tmp_path, options, links=links)
    assert result.returncode != 0
    assert complaint in result.stderr


def exported(name: str) -> list[str]:
    """Returns the names that ringar looks up in a library."""
    text = (LINKS / f"{name}_abi.h").read_text()
    names = re.findall(rf"\bF\(\w+, ({'cu' if name == 'cuda' else name}\w+),", text)
    return names + (["ncclGetErrorString", "ncclGetLastError"] if name == "nccl" else [])


@pytest.mark.parametrize("name", SOURCES)
def test_a_real_library_has_every_function(name: str) -> None:
    from ringar.job import nvidia

    path = (nvidia.cuda_library if name == "cuda" else nvidia.nccl_library)({})
    check_library(name, path or {"cuda": "libcuda.so.1", "nccl": "libnccl.so.2"}[name])


@pytest.mark.slow
@pytest.mark.deadline(900)
def test_each_nccl_has_every_function(nccl_wheel: Path) -> None:
    check_library("nccl", str(nccl_wheel / "lib" / "libnccl.so.2"))


def check_library(name: str, path: str) -> None:
    """Look the functions up in a process of its own: opening a library may start threads."""
    code = f"""
import ctypes, sys
try:
    library = ctypes.CDLL({path!r})
except OSError:
    sys.exit(77)
print([name for name in {exported(name)} if not hasattr(library, name)])
"""
    result = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    if result.returncode == 77:
        pytest.skip(f"{path} cannot be opened")
    assert len(exported(name)) > 20
    assert result.stdout == "[]\n", result.stderr
