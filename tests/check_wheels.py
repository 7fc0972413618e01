"""`make check-wheels`: the wheels run where their names say, and bring their libstdc++ along."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

PLATFORM = re.compile(r"manylinux_(\d+)_(\d+)_(\w+)")


def main() -> None:
    """Checks the wheels that the command names; the first wrong one ends it with an error."""
    for name in sys.argv[1:]:
        wheel = Path(name)
        if wheel.stem.endswith("-any"):
            check_pure(wheel)
            continue
        promised = platform_in(wheel.stem.rpartition("-")[2])
        policy = platform_in(audit(wheel))
        if policy[2] != promised[2] or policy[:2] > promised[:2]:
            sys.exit(f"{wheel.name}: expected {promised}, auditwheel found {policy}")
        if versions := libstdcxx(wheel):
            sys.exit(f"{wheel.name}: expected no need of libstdc++, found {', '.join(versions)}")
        size = wheel.stat().st_size / 1e6
        print(f"== {wheel.name}: runs with glibc {policy[0]}.{policy[1]} and later ({size:.1f} MB)")


def check_pure(wheel: Path) -> None:
    """Checks a wheel for any system: it holds Python alone, and says so."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (record,) = (archive.read(name) for name in names if name.endswith(".dist-info/WHEEL"))
    kinds = (".py", ".pyi", "py.typed", ".yaml", ".sbatch")
    extras = [name for name in names if ".dist-info/" not in name and not name.endswith(kinds)]
    if extras or b"Root-Is-Purelib: true" not in record:
        sys.exit(f"{wheel.name}: expected Python alone, found {extras or record.decode()}")
    print(f"== {wheel.name}: runs on any system ({wheel.stat().st_size / 1e6:.1f} MB)")


def platform_in(text: str) -> tuple[int, int, str]:
    """Returns the first manylinux platform in `text`: glibc's version and the machine."""
    match = PLATFORM.search(text)
    if match is None:
        sys.exit(f"expected a platform such as manylinux_2_27_x86_64, received: {text}")
    return int(match[1]), int(match[2]), match[3]


def audit(wheel: Path) -> str:
    """Returns what auditwheel finds in a wheel; it names the oldest platform first."""
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    shown = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    print(shown.stdout, shown.stderr, sep="")
    # Before it is the name of the wheel, which has a platform, too.
    return shown.stdout.partition("platform tag:")[2]


def libstdcxx(wheel: Path) -> list[str]:
    """Returns the versions of libstdc++ that the wheel's libraries need."""
    with zipfile.ZipFile(wheel) as archive:
        libraries = [archive.read(name) for name in archive.namelist() if name.endswith(".so")]
    versions = re.findall(rb"\0((?:GLIBCXX|CXXABI)_[\d.]+)(?=\0)", b"".join(libraries))
    return sorted({version.decode() for version in versions})


if __name__ == "__main__":
    main()
