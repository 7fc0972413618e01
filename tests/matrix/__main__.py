"""Installs a wheel beside each TensorFlow, without a compiler, and runs scripts on two ranks.

    python -m tests.matrix WHEEL [TENSORFLOW ...]

The scripts are the README's, as a user has it, and steps.py. The oldest TensorFlow has the oldest
Keras beside it. The environments stay under build/matrix/ and are used again; the wheel is
installed anew each time.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bare_machine import without_compilers

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "matrix"
RANKS = 2


@dataclass(frozen=True)
class Release:
    """A TensorFlow release, its Keras, and the newest Python, 3.`python`, that has its wheels."""

    tensorflow: str
    keras: str
    python: int


RELEASES = [Release("2.16.2", "==3.12.*", 12), Release("2.21.*", ">=3.12", 13)]


def main() -> None:
    """Runs everything; the first failure ends it with an error."""
    wheel = Path(sys.argv[1]).resolve()
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()[:16]
    print(f"== {wheel.name} (sha256 {digest}…)", flush=True)
    versions = sys.argv[2:]
    releases = [release for release in RELEASES if not versions or release.tensorflow in versions]
    if not releases:
        choice = " and ".join(release.tensorflow for release in RELEASES)
        sys.exit(f"expected a TensorFlow out of {choice}, received {' '.join(versions)}")
    for release in releases:
        start = time.monotonic()
        python = environment(release, wheel)
        ready = time.monotonic()
        command: list[str | Path] = [
            python.with_name("ringarrun"),
            "-np",
            str(RANKS),
            "--no-prefix",
            python,
        ]
        run(*command, "-I", readme_script(), limit=240)
        # Isolated from the checkout: what is imported is what the wheel brought.
        run(*command, "-I", ROOT / "tests/matrix/steps.py", limit=240)
        took = f"{ready - start:.0f} s to install, {time.monotonic() - ready:.0f} s to run"
        print(f"== TensorFlow {release.tensorflow}: passed ({took})", flush=True)
    print(
        f"== the same wheel passed beside {len(releases)} of {len(RELEASES)} releases of TensorFlow"
    )


def readme_script() -> Path:
    """Returns the README's first script."""
    code = re.search(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    if code is None:
        sys.exit("expected a script in README.md, found none")
    script = FOLDER / "train.py"
    script.write_text(code[1])
    return script


def environment(release: Release, wheel: Path) -> Path:
    """Returns the interpreter of an environment with that TensorFlow and the wheel."""
    base = interpreter(release)
    version = output(base, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    folder = FOLDER / f"tensorflow-{release.tensorflow.rstrip('.*')}-python-{version}"
    python, stamp = folder / "bin" / "python", folder / "installed"
    if not stamp.exists():
        shutil.rmtree(folder, ignore_errors=True)
        run(base, "-m", "venv", folder, limit=120)
        requirements: list[str | Path] = [
            f"tensorflow=={release.tensorflow}",
            f"keras{release.keras}",
            wheel,
        ]
        # One command, so that one set of versions satisfies all.
        run(python, "-m", "pip", "install", "--quiet", "--no-compile", *requirements, limit=600)
        stamp.touch()
    pip: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--force-reinstall",
    ]
    run(*pip, wheel, limit=120)
    return python


def interpreter(release: Release) -> str:
    """Returns a Python that `release` has wheels for: this one, if it is not too new."""
    if sys.version_info[1] <= release.python:
        return sys.executable
    for minor in range(release.python, 9, -1):
        if python := shutil.which(f"python3.{minor}"):
            return python
    sys.exit(
        f"TensorFlow {release.tensorflow} needs Python 3.10 to 3.{release.python}, found only "
        f"3.{sys.version_info[1]}; install one as python3.{release.python}"
    )


def run(*command: str | Path, limit: float) -> None:
    """Runs a command, which finds no compiler; ends the program if it fails or takes too long."""
    words = [str(word) for word in command]
    environment = without_compilers(FOLDER / "bin")
    try:
        done = subprocess.run(words, timeout=limit, check=False, env=environment)
    except subprocess.TimeoutExpired:
        sys.exit(f"stopped after {limit} s: {' '.join(words)}")
    if done.returncode != 0:
        sys.exit(f"exited with {done.returncode}: {' '.join(words)}")


def output(*command: str | Path) -> str:
    """Returns what a command prints."""
    return subprocess.run(
        [str(word) for word in command], check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()


if __name__ == "__main__":
    main()
