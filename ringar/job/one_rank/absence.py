"""The reason why an installation has no native library, and the systems that have one."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

SYSTEMS = "Linux on x86-64 or aarch64 (on Windows: in WSL)"
"""The systems that have the native library."""

_NAMES = {"darwin": "macOS", "win32": "Windows"}


@dataclass(frozen=True)
class Absence:
    """Describe an installation that has no native library.

    Attributes:
        reason: why it has none.
        remedy: how to get all ranks.
        is_fixable: whether this system could have one.
    """

    reason: str
    remedy: str
    is_fixable: bool

    def text(self) -> str:
        """Return reason and remedy."""
        return f"{self.reason}. {self.remedy}"

    def refusal(self, expected: str) -> str:
        """Return the text of an error about a call that needs the library.

        Args:
            expected: what the call needs the library for.
        """
        return (
            f"expected ringar's native library for {expected}, received an installation without: "
            f"{self.text()}"
        )


def is_linux() -> bool:
    """Return whether this is the system that ringar's library and launcher are for."""
    return sys.platform == "linux"


def absence_of_system() -> Absence:
    """Return why there is no library for this system."""
    return Absence(
        f"{_NAMES.get(sys.platform, sys.platform)} ({platform.machine()}) has none",
        f"More than one rank, and what needs the library, run on {SYSTEMS}.",
        is_fixable=False,
    )


def absence(path: Path) -> Absence | None:
    """Return why the library at `path` is not there, as it may be; None: it is there, or is lost.

    Args:
        path: the library.
    """
    if not is_linux():
        return absence_of_system()
    if path.exists() or not _is_pure():
        return None
    return Absence(
        "it comes from the wheel py3-none-any, or was built where there was no C++ compiler",
        "Build the wheel of this system in a checkout (make wheel), or install g++ and then "
        "ringar again.",
        is_fixable=True,
    )


def _is_pure() -> bool:
    """Return whether ringar was installed from a wheel that has no library for any system."""
    try:
        text = importlib.metadata.distribution("ringar").read_text("WHEEL")
    except importlib.metadata.PackageNotFoundError:
        return False
    return "Root-Is-Purelib: true" in (text or "")
