"""A TensorFlow that passes another kind of callback to asynchronous ops gets an error, no crash."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import compiler
from tests.plugin import run_job

pytestmark = pytest.mark.job

# Stands between ringar and TensorFlow: ringar gets callbacks of another layout, or such that look
# like the right ones, and are not where TensorFlow looks for its function.
OTHER_TENSORFLOW = """
#include <dlfcn.h>
#include <cstdlib>
#include <functional>

using Compute = void(void*, void*, void*);
using Run = void(void*);

struct Callback {
  std::function<void()> shown;
  void* tensorflows;
};

template <typename Function>
Function* next(const char* name) {
  for (const char* file : {"libtensorflow_framework.so.2", "libtensorflow_cc.so.2"})
    if (void* library = dlopen(file, RTLD_NOW | RTLD_NOLOAD))
      if (void* function = dlsym(library, name)) return reinterpret_cast<Function*>(function);
  std::abort();
}

Compute* ringars_compute;

void compute(void* kernel, void* context, void* done) {
  auto* callback = new Callback{nullptr, done};
  if (std::getenv("LOOKS_RIGHT")) callback->shown = [] {};
  ringars_compute(kernel, context, callback);
}

extern "C" void* TF_NewAsyncKernelBuilder(const char* op, const char* device, void* create,
                                          Compute* theirs, void* destroy) {
  ringars_compute = theirs;
  using Builder = void*(const char*, const char*, void*, Compute*, void*);
  return next<Builder>("TF_NewAsyncKernelBuilder")(op, device, create, compute, destroy);
}

bool tried = std::getenv("LOOKS_RIGHT") == nullptr;

extern "C" void TF_RunAsyncOpKernelDoneCallback(void* callback) {
  if (!tried) { tried = true; return; }
  next<Run>("TF_RunAsyncOpKernelDoneCallback")(static_cast<Callback*>(callback)->tensorflows);
}
"""

PROGRAM = """
import ringar
import tensorflow as tf

ringar.init()

# The size is not known when it is traced, so that the op is asynchronous.
@tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
def step(x):
    return ringar.allreduce(x, ringar.Sum)

for _ in range(2):
    try:
        step(tf.ones(3))
    except tf.errors.UnimplementedError as error:
        print(error.message)
print("eager:", ringar.allreduce(tf.ones(3), ringar.Sum).numpy())
"""


@pytest.fixture(scope="module")
def other_tensorflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a library to load before TensorFlow."""
    folder = tmp_path_factory.mktemp("other")
    source, library = folder / "other.cc", folder / "other.so"
    source.write_text(OTHER_TENSORFLOW)
    flags = ("-std=c++17", "-shared", "-fPIC", "-o", str(library))
    command = [compiler.path(), *flags, str(source), "-ldl"]
    subprocess.run(command, check=True, timeout=100)
    return library


@pytest.mark.parametrize(
    "variables",
    [{}, pytest.param({"LOOKS_RIGHT": "1"}, marks=pytest.mark.slow)],
    ids=["another layout", "another place"],
)
def test_another_callback_is_refused(other_tensorflow: Path, variables: dict[str, str]) -> None:
    env = {"LD_PRELOAD": str(other_tensorflow), **variables}
    result = run_job(2, PROGRAM, env=env, launcher_args=["--no-prefix"], deadline=60).check()
    expected = "expected TensorFlow to pass a std::function<void()> of libstdc++"
    assert result.stdout.count(expected) == 4, result
    assert result.stdout.count("eager: [2. 2. 2.]") == 2, result
