"""ringarrun as the first process of a container reaps, passes signals on, and ends."""

from __future__ import annotations

import subprocess

import pytest

from tests.launchers.helpers import LAUNCHER, Launcher, python

CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")

REAPED = """
import os, time
from pathlib import Path

def zombies():
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            found += [path.parent.name] * (path.read_text().rpartition(") ")[2][0] == "Z")
        except OSError:
            pass
    return found

assert os.getpid() != 1
for _ in range(5):
    if os.fork() == 0:
        if os.fork():
            os._exit(0)
        time.sleep(0.1)
        os._exit(0)
    os.wait()
time.sleep(0.3)
end = time.monotonic() + 20
while zombies() and time.monotonic() < end:
    time.sleep(0.05)
print("zombies", len(zombies()), flush=True)
"""


def can_make_containers() -> bool:
    return subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("end", "code", "says"),
    [
        ("", 0, ""),
        ("os._exit(7)", 7, "ringarrun: rank 0 of 1 failed with exit code 7"),
        ("os.kill(1, 15); time.sleep(60)", 143, "ringarrun: stopped all ranks on SIGTERM"),
    ],
)
def test_the_first_process_reaps_and_passes_signals_on(end: str, code: int, says: str) -> None:
    if not can_make_containers():
        pytest.skip("needs root, for process namespaces")
    command = (*CONTAINER, *LAUNCHER)
    with Launcher("-np", "1", *python(REAPED + end), command=command) as launcher:
        result = launcher.finish()
    assert result.stdout == "zombies 0\n", result.stderr
    assert result.stderr.strip() == says
    assert result.returncode == code
