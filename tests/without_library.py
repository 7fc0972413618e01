"""`python -m tests.without_library SYSTEM …`: pytest as on a system without the native library.

A script in the place of pytest's arguments runs by itself. TensorFlow and pytest are imported
first, as they are on this system. Then `sys.platform` changes, modules and functions go that the
system lacks, and ringar comes from a copy without libraries.
"""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: What Python lacks: modules, functions of `os`, and signals.
LACKS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "darwin": (
        (),
        ("memfd_create", "posix_fallocate", "sched_getaffinity", "sched_setaffinity"),
        (),
    ),
    "win32": (
        ("fcntl", "grp", "pwd", "resource", "termios"),
        (
            *("fork", "getpgid", "geteuid", "getuid", "killpg", "memfd_create", "pidfd_open"),
            *("posix_fallocate", "register_at_fork", "sched_getaffinity", "sched_setaffinity"),
            *("setsid", "statvfs", "uname", "waitid"),
        ),
        ("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGSTOP", "SIGTSTP", "SIGUSR1"),
    ),
}


def copy_without_library(folder: Path) -> None:
    """Copies the package, its launchers in their place, to a folder."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "ringar", folder / "ringar", ignore=ignored)
    shutil.copytree(ROOT / "launchers", folder / "ringar" / "launchers", ignore=ignored)


def become(system: str) -> None:
    """Makes this process look like one of another system."""
    modules, functions, signals = LACKS[system]
    sys.modules.update(dict.fromkeys(modules))  # type: ignore[arg-type]
    for module, names in ((os, functions), (signal, signals)):
        for name in names:
            delattr(module, name)
    sys.platform = system


class Plugin:
    """Changes the system between the start of pytest, which runs on this one, and the tests."""

    def __init__(self, system: str, folder: str) -> None:
        self._system, self._folder = system, folder

    def pytest_sessionstart(self) -> None:
        assert "ringar" not in sys.modules
        sys.path.insert(0, self._folder)
        become(self._system)
        import ringar

        assert Path(ringar.__file__).is_relative_to(self._folder)


def main() -> int:
    """Runs a script, or pytest with the arguments behind the name of the system."""
    system, *arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        copy_without_library(Path(folder))
        plugin = Plugin(system, folder)
        if Path(arguments[0]).is_file():
            import numpy  # noqa: F401
            import wrapt  # noqa: F401

            plugin.pytest_sessionstart()
            runpy.run_path(arguments[0], run_name="__main__")
            return 0
        import keras  # noqa: F401
        import pytest

        return int(pytest.main([*arguments, "-p", "no:cacheprovider"], plugins=[plugin]))


if __name__ == "__main__":
    sys.exit(main())
