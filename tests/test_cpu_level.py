"""RINGAR_CPU_LEVEL chooses the instruction set, which changes no bit of a result.

Every level against a reference: tests/native/test_reduce.cc.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from ringar.job import native

pytestmark = pytest.mark.job

LEVELS = ["baseline", "neon"] if platform.machine() == "aarch64" else ["baseline", "avx2", "avx512"]
# Only the C interface of the library: no TensorFlow, a fraction of a second.
SCRIPT = """
import ctypes, sys
import numpy as np
from ringar.job import native

lib = ctypes.CDLL(sys.argv[1])
lib.ringar_cpu_level.restype = lib.ringar_last_error.restype = ctypes.c_char_p
print(lib.ringar_cpu_level().decode(), file=sys.stderr)
config = native.Config(size=1, local_size=1, cross_size=1, segment_fd=-1, start_timeout=1.0,
                       deadline=1.0, stall_warning=1.0)
assert lib.ringar_init(ctypes.byref(config)) == 0
random = np.random.default_rng(0)
for dtype, size in (("float16", 2), ("bfloat16", 2), ("float32", 4), ("float64", 8)):
    array = np.frombuffer(random.bytes(100_003 * size), np.uint8)
    output = np.empty_like(array)
    dims = (ctypes.c_int64 * 1)(array.size // size)
    call = native.Description(array.ctypes.data, output.ctypes.data, 1, ctypes.addressof(dims))
    spec = f"allreduce dtype={dtype} op=sum root=0 set=0 prescale=1.5 postscale=0.3 name=x"
    assert lib.ringar_run(spec.encode(), ctypes.byref(call), 1, None, 0, None, None, None) == 0
    sys.stdout.buffer.write(output.tobytes())
"""


def run(level: str | None) -> tuple[str, str]:
    """The level that was used, and a digest of what it made of random bits."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RINGAR_")}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    if level:
        environment["RINGAR_CPU_LEVEL"] = level
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(native.PATH)],
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr.decode()
    return process.stderr.decode().strip(), hashlib.sha256(process.stdout).hexdigest()


def test_levels_are_chosen_and_agree() -> None:
    best, digest = run(None)
    assert best in LEVELS
    for level in LEVELS[: LEVELS.index(best) + 1]:
        assert run(level) == (level, digest)
    for beyond in LEVELS[LEVELS.index(best) :]:  # a machine has what it has
        assert run(beyond) == (best, digest)
