"""The machine, the versions and the commit that a figure depends on."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def _cpu_model() -> str:
    """Returns the name of the processor; where a virtual machine hides its number, its family."""
    facts: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    name = facts.get("model name") or platform.processor() or platform.machine()
    if re.search(r"\d", name) or "cpu family" not in facts:
        return name
    return f"{name} (family {facts['cpu family']}, model {facts['model']})"


def _memory_gib() -> float:
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return round(pages * page / 2**30, 1)


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()

    status = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    suffix = " with changes" if status else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + suffix


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe() -> dict[str, Any]:
    """Returns the machine, versions, commit and time of a measurement."""
    versions = {name: _version(name) for name in ("tensorflow", "keras", "numpy", "ringar")}
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": _memory_gib(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: version for name, version in versions.items() if version},
        "commit": _commit(),
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def headline(machine: dict[str, Any]) -> str:
    """Returns one line for the head of a table."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB, "
        f"{versions}, commit {machine['commit']}"
    )
