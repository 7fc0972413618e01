"""Calibration of a machine: measured when a first job starts there, and kept for later jobs.

tf_ops/engine/calibration.h describes the measurement by the ranks of a host. The result is the
number of bytes from which an allreduce stores its results past the caches. It holds for a kind of
machine, a version of ringar and a number of ranks; the user's cache directory has a file for each.
A file for another kind is ignored, and written anew. Jobs that start at once each put a whole file
in place; the last one stays.

The first rank of a host reads and writes the file, and the others take its number in `init`. The
built-in default, that no size gains, holds where a calibration could not be kept or would measure
something else. RINGAR_CALIBRATION chooses: `auto`, `off` (built-in) or `again` (measure anew).

Nothing here needs TensorFlow or NumPy: `ringarrun --check-build` imports it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ringar.job import log
from ringar.version import __version__

if TYPE_CHECKING:
    from ringar.job import native

VARIABLE = "RINGAR_CALIBRATION"
MODES = ("auto", "off", "again")

NEVER = 0
"""The number that stands for no size, the built-in default."""
MEASURE = -1
"""The request to measure, in place of a number (RINGAR_CALIBRATE of ringar.h)."""

_CPU_INFO = Path("/proc/cpuinfo")
_SYSFS = Path("/sys/devices/system")
_OF_PROCESSOR = (
    "vendor_id", "model name", "cpu family", "model", "stepping",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision",
)  # fmt: skip

_log = log.logger(__name__)


@dataclass(frozen=True)
class Kind:
    """Name the machine, the version and the number of ranks for which a calibration holds."""

    version: str
    processor: str
    topology: str
    ranks: int

    @property
    def path(self) -> Path:
        """The path of the calibration file, shared by all versions."""
        machine = f"{self.processor}\n{self.topology}"
        digest = hashlib.sha256(machine.encode()).hexdigest()[:12]
        return folder() / f"calibration-{digest}-{self.ranks}.json"


def folder() -> Path:
    """Return the user's cache directory of ringar."""
    # A relative path is to be ignored, says the specification of XDG.
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache.startswith("/") else Path("~/.cache").expanduser()) / "ringar"


def this_kind(ranks: int) -> Kind:
    """Return the kind of this machine, for so many ranks."""
    return Kind(__version__, _processor(), _topology(), ranks)


def load(kind: Kind) -> int | None:
    """Return the number in the file of `kind`; None if there is none that can be used."""
    try:
        saved = json.loads(kind.path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    expected = asdict(kind)
    if not isinstance(saved, dict) or {name: saved.get(name) for name in expected} != expected:
        return None
    number = saved.get("past_caches_bytes")
    return number if type(number) is int and 0 <= number < 2**62 else None


def store(kind: Kind, number: int) -> bool:
    """Write the file of `kind`, whole or not at all; return whether it is there."""
    text = json.dumps({**asdict(kind), "past_caches_bytes": number}, indent=1) + "\n"
    try:
        with beside(kind.path) as new:
            new.write_text(text, encoding="utf-8")
            new.replace(kind.path)
    except OSError as error:
        _log.warning("cannot keep the calibration of this machine: %s", error)
        return False
    return True


def check_mode(environment: Mapping[str, str]) -> None:
    """Raise `ValueError` if RINGAR_CALIBRATION is none of its words."""
    mode = environment.get(VARIABLE) or MODES[0]
    if mode not in MODES:
        raise ValueError(f"{VARIABLE} must be one of {', '.join(MODES)}. Received: {mode!r}")


def obstacle(config: native.Config, environment: Mapping[str, str]) -> str:
    """Return why the ranks of a job use the built-in default; "" if they calibrate."""
    if config.size == 1:
        return "one rank has none to exchange with"
    if config.local_size != config.size:
        return "the job runs on several hosts"
    if config.size > (os.cpu_count() or 1):
        return f"there are more ranks ({config.size}) than CPUs ({os.cpu_count()})"
    if "RINGAR_TUNING" in environment:
        return "RINGAR_TUNING is set"
    return f"{VARIABLE}=off" if environment.get(VARIABLE) == "off" else ""


def proposal(config: native.Config, environment: Mapping[str, str]) -> int:
    """Return the number for `ringar_init`, NEVER or MEASURE; that of a host's first rank counts.

    Raises:
        ValueError: RINGAR_CALIBRATION is none of its words.
    """
    check_mode(environment)
    if config.local_rank != 0 or obstacle(config, environment):
        return NEVER
    if environment.get(VARIABLE) == "again":
        return MEASURE
    kind = this_kind(config.size)
    saved = load(kind)
    if saved is not None:
        return saved
    # Every job would measure again what cannot be kept; and a changed world must not wait.
    return MEASURE if config.generation <= 1 and _is_writable(kind.path) else NEVER


def describe(ranks: int, number: int) -> str:
    """Return the result of a calibration in words."""
    if number == NEVER:
        return f"{ranks} ranks: no allreduce gains by storing its results past the caches"
    return (
        f"{ranks} ranks: allreduces of {number / 2**20:.4g} MiB and more store their results past "
        "the caches"
    )


def entries() -> Iterator[tuple[Kind, int]]:
    """Yield the calibrations of this machine and version, by their numbers of ranks."""
    machine = this_kind(0)
    files = folder().glob(machine.path.name.replace("-0.json", "-*.json"))
    numbers = (path.stem.rpartition("-")[2] for path in files)
    for ranks in sorted(int(text) for text in numbers if text.isdecimal()):
        kind = replace(machine, ranks=ranks)
        number = load(kind)
        if number is not None:
            yield kind, number


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Make a file in the folder of `path`, which does not outlive the context."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file, name = tempfile.mkstemp(prefix=f"{path.stem}.", suffix=".tmp", dir=path.parent)
    os.close(file)
    try:
        yield Path(name)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)


def _is_writable(path: Path) -> bool:
    try:
        with beside(path):
            return True
    except OSError:
        return False


def _processor() -> str:
    try:
        first = _CPU_INFO.read_text(errors="replace").partition("\n\n")[0]
    except OSError:
        first = ""
    lines = (line.partition(":") for line in first.splitlines())
    facts = {key.strip(): value.strip() for key, _, value in lines}
    return ", ".join([platform.machine(), *(facts[key] for key in _OF_PROCESSOR if key in facts)])


def _topology() -> str:
    """Return how many CPUs, cores, packages and nodes there are, and which caches CPUs share."""
    cpus = [path for path in _SYSFS.glob("cpu/cpu*") if re.fullmatch(r"cpu\d+", path.name)]
    places = {
        (_read(cpu / "topology/physical_package_id"), _read(cpu / "topology/core_id"))
        for cpu in cpus
    }
    nodes = list(_SYSFS.glob("node/node[0-9]*"))
    caches = [
        " ".join(_read(cache / name) for name in ("level", "type", "size", "shared_cpu_list"))
        for cache in sorted(_SYSFS.glob("cpu/cpu0/cache/index*"))
    ]
    counts = (
        f"{len(cpus)} CPUs, {len(places)} cores, {len({package for package, _ in places})} "
        f"packages, {len(nodes)} nodes"
    )
    return "; ".join([counts, *caches])


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
