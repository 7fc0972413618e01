"""The files of Autotune, which rank 0 reads and writes: the log, and the file of settings.

The log is CSV, a row for each sample. It is opened for appending, so that the searches of several
models, or jobs, follow each other.

The file of settings is JSON. It holds the settings that were chosen for each kind of job: a version
of ringar, a processor, numbers of hosts and ranks, and the variables of a model. Entries of other
kinds stay.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO

from ringar.job import calibration
from ringar.keras.tuned import DEFAULTS, Settings
from ringar.keras.tuning.search import Choice, Sample
from ringar.keras.tuning.space import Job
from ringar.version import __version__

_SETTINGS = tuple(field.name for field in fields(Settings))
_COLUMNS = ("model", "sample", "phase", *_SETTINGS, "seconds")


@dataclass(frozen=True)
class Kind:
    """Name the kind of job that settings are for."""

    version: str
    processor: str
    hosts: int
    ranks: int
    model: str
    chosen: str
    compression: bool

    @classmethod
    def of(cls, job: Job, compression: bool = False) -> Kind:
        """Return the kind of a job on this machine, which may have tried compression."""
        variables = " ".join(f"{spec.dtype}{list(spec.shape or ())}" for spec in job.specs)
        chosen = ", ".join(f"{name}={value}" for name, value in sorted(job.chosen.items()))
        return cls(
            __version__,
            calibration.this_kind(job.ranks).processor,
            job.hosts,
            job.ranks,
            hashlib.sha256(variables.encode()).hexdigest()[:12],
            chosen,
            compression,
        )


class Log:
    """Write the samples of a search.

    Args:
        path: the file, which may exist.
        model: the signature of the model.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, model: str) -> None:
        self._file: IO[str] = path.open("a", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file)
        self._model = model
        self._count = 0
        if self._file.tell() == 0:
            self._writer.writerow(_COLUMNS)
            self._file.flush()

    def write(self, sample: Sample, seconds: float) -> None:
        """Write a row, at once."""
        values = [getattr(sample.settings, name) for name in _SETTINGS]
        texts = ["default" if value is None else value for value in values]
        self._writer.writerow([self._model, self._count, sample.phase, *texts, f"{seconds:.6g}"])
        self._file.flush()
        self._count += 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def load(path: Path, kind: Kind) -> Settings | None:
    """Return the settings for `kind` in a file; None if it has none, or does not exist.

    Raises:
        ValueError: the file cannot be read, or is no file of settings.
    """
    for entry in _entries(path):
        if entry.get("kind") == asdict(kind):
            return _settings(entry.get("settings"), path)
    return None


def store(path: Path, kind: Kind, choice: Choice) -> None:
    """Write the settings for `kind`, in the place of others that the file has for it.

    Raises:
        OSError: the file cannot be written.
        ValueError: the file is there and cannot be read.
    """
    record = {"kind": asdict(kind), "settings": asdict(choice.settings),
           "seconds": choice.seconds, "default_seconds": choice.default_seconds}  # fmt: skip
    entries = [entry for entry in _entries(path) if entry.get("kind") != record["kind"]]
    text = json.dumps({"settings": [*entries, record]}, indent=1) + "\n"
    with calibration.beside(path) as new:
        new.unlink()  # only its user may read it; a new file gets the usual rights
        new.write_text(text, encoding="utf-8")
        if path.exists():
            shutil.copymode(path, new)
        new.replace(path)


def check_writable(path: Path) -> None:
    """Raise `OSError` if the file of settings cannot be written."""
    with calibration.beside(path):
        pass


def _entries(path: Path) -> list[Mapping[str, object]]:
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: expected a file of settings: {error}") from error
    entries = contents.get("settings") if isinstance(contents, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f'{path}: expected a file of settings, an object with a list "settings"')
    return entries


def _settings(entry: object, path: Path) -> Settings:
    if isinstance(entry, dict) and set(entry) == set(_SETTINGS):
        sizes = (entry["bucket_bytes"], entry["first_bucket_bytes"])
        names = (entry["algorithm"] or "", entry["compression"])
        if all(size is None or (type(size) is int and size > 0) for size in sizes) and all(
            isinstance(name, str) for name in names
        ):
            return Settings(**entry)
    raise ValueError(
        f"{path}: expected settings with {', '.join(_SETTINGS)}, such as {asdict(DEFAULTS)}, "
        f"received {entry}"
    )
