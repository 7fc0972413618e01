"""tf_ops/kernels/xla.cc and xla_cuda.cc rely on what each TensorFlow's XLA is.

XLA gives custom calls no stable interface. ringar takes three things from it: the functions of the
registry by their mangled names, the layout of the status, and the types of targets.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests import compiler
from tests.elf import exports
from tests.plugin.jobs import ROOT

TF_OPS = ROOT / "tf_ops"

#: Where `find_in_tensorflow` looks.
LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")
#: Where `CustomCallTarget` is declared: on the CPU from 2.18 on, on GPUs in each release.
CPU_TARGETS = "xla/backends/cpu/runtime/custom_call_thunk.h"
GPU_TARGETS = ("xla/backends/gpu/runtime/custom_call_thunk.h", "xla/service/gpu/runtime*/*_thunk.h")

#: ringar's status and XLA's have one name.
HEADERS = """
#include <cstddef>
#include <functional>
#include <type_traits>
#define XlaCustomCallStatus_ RingarStatus
#include "kernels/xla.h"
#undef XlaCustomCallStatus_
#include "xla/service/custom_call_status_internal.h"
#include "xla/service/custom_call_target_registry.h"
"""

DECLARATIONS = """
using Ours = RingarStatus;
using Theirs = XlaCustomCallStatus_;
static_assert(std::is_same_v<decltype(Ours::message), decltype(Theirs::message)>, "message");
static_assert(offsetof(Ours, message) == offsetof(Theirs, message), "place of the message");
static_assert(sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs), "status");

using Registry = xla::CustomCallTargetRegistry;
using Text = const std::string&;
static_assert(std::is_same_v<decltype(&Registry::Global), Registry* (*)()>, "Global");
static_assert(std::is_same_v<decltype(&Registry::Register), void (Registry::*)(Text, void*, Text)>,
              "Register");

// Theirs, with our status in place of XLA's.
template <class Stream, class Buffers>
using Target = void(Stream, Buffers, const char*, size_t, Ours*);
static_assert(std::is_same_v<ringar::XlaTarget, Target<void*, const void**>>, "for the CPU");
static_assert(std::is_same_v<decltype(ringar_xla_collective_on_gpu), Target<void*, void**>>,
              "for GPUs");

namespace stream_executor {
class Stream;
}
"""

#: XLA's types of targets; it hands the stream over as `void*` or CUstream.
CPU_TYPE = """
namespace cpu {
%s
static_assert(std::is_same_v<CustomCallTarget, std::function<void(void*, const void**, const char*,
                             size_t, XlaCustomCallStatus*)>>, "CustomCallTarget of the CPU");
}
"""
GPU_TYPE = """
namespace gpu {
using Stream = void*;
%s
template <class S>
using Gpu = std::function<void(S, void**, const char*, size_t, XlaCustomCallStatus*)>;
static_assert(std::is_same_v<CustomCallTarget, Gpu<void*>> ||
              std::is_same_v<CustomCallTarget, Gpu<stream_executor::Stream*>>,
              "CustomCallTarget of GPUs");
}
"""
#: In later releases the type of the function itself has a name.
GPU_HANDLE = """
#if __has_include("xla/backends/gpu/runtime/custom_call_target.h")
#include "xla/backends/gpu/runtime/custom_call_target.h"
static_assert(std::is_same_v<xla::gpu::CustomCallWithStatusAndOpaqueStreamHandle,
                             void (*)(void*, void**, const char*, size_t, XlaCustomCallStatus*)>,
              "CustomCallWithStatusAndOpaqueStreamHandle");
#endif
"""

#: What must come out as the names in xla.cc.
CALLS = """
Registry* get() { return Registry::Global(); }
void add(Registry* registry, Text text, void* target) { registry->Register(text, target, text); }
"""


def options(include: Path) -> tuple[str, ...]:
    return ("-isystem", str(include), f"-I{TF_OPS}")


def target_types(include: Path) -> str:
    """Return checks of the types that XLA's thunks declare, whose headers include too much."""
    cpu = list(include.glob(CPU_TARGETS))
    gpu = [path for pattern in GPU_TARGETS for path in include.glob(pattern)]
    checks = [(path, CPU_TYPE) for path in cpu] + [(path, GPU_TYPE) for path in gpu]
    types = [(re.findall(r"using CustomCallTarget =[^;]*;", p.read_text()), c) for p, c in checks]
    present = [check % using[0] for using, check in types if using]
    assert any("namespace gpu" in check for check in present), "no type of targets on GPUs"
    return "".join(present)


def program(include: Path) -> str:
    return HEADERS + DECLARATIONS + target_types(include) + GPU_HANDLE


def looked_up() -> list[str]:
    """Returns the mangled names in xla.cc."""
    text = (TF_OPS / "kernels" / "xla.cc").read_text()
    constants = re.findall(r'constexpr const char\* k\w+ =\s*((?:"\w+"\s*)+);', text)
    return ["".join(re.findall(r'"(\w+)"', literals)) for literals in constants]


def test_declarations_are_those_of_xla(tensorflow_folder: Path, tmp_path: Path) -> None:
    include = tensorflow_folder / "include"
    result = compiler.check(program(include), tmp_path, *options(include))
    assert result.returncode == 0, result.stderr


def test_names_are_those_of_the_registry(tensorflow_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "calls.cc"
    source.write_text(HEADERS + DECLARATIONS + CALLS)
    command = [compiler.path(), "-std=c++17", "-S", "-o-", *options(tensorflow_folder / "include")]
    done = subprocess.run(
        [*command, str(source)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    names = set(re.findall(r"\b_ZN3xla\w+", done.stdout))
    assert names == set(looked_up())
    assert len(names) == 2
    libraries = [tensorflow_folder / name for name in LIBRARIES]
    assert set().union(*(exports(library, names) for library in libraries)) == names


@pytest.mark.slow  # the comparison itself
@pytest.mark.parametrize(
    ("right", "fault", "complaint"),
    [
        ("std::optional<std::string> message", "std::string message", "message"),
        ("message;\n", "message;\n  int code;\n", "status"),
        ("const void** inputs", "void** inputs", "for the CPU"),
        ("void* stream, void** buffers", "void* stream, const void** buffers", "for GPUs"),
    ],
)
def test_a_wrong_declaration_is_found(
    tensorflow_folder: Path, tmp_path: Path, right: str, fault: str, complaint: str
) -> None:
    text = (TF_OPS / "kernels" / "xla.h").read_text()
    assert right in text
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "xla.h").write_text(text.replace(right, fault, 1))
    include = tensorflow_folder / "include"
    result = compiler.check(program(include), tmp_path, f"-I{tmp_path}", *options(include))
    assert f"static assertion failed: {complaint}" in result.stderr
