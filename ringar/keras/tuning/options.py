"""The options of Autotune: variables of the environment that begin with RINGAR_AUTOTUNE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "RINGAR_AUTOTUNE"
LOG_VARIABLE = "RINGAR_AUTOTUNE_LOG"
SETTINGS_VARIABLE = "RINGAR_AUTOTUNE_SETTINGS"
COMPRESSION_VARIABLE = "RINGAR_AUTOTUNE_COMPRESSION"
WARMUP_VARIABLE = "RINGAR_AUTOTUNE_WARMUP_SAMPLES"
STEPS_VARIABLE = "RINGAR_AUTOTUNE_STEPS_PER_SAMPLE"
SAMPLES_VARIABLE = "RINGAR_AUTOTUNE_BAYES_OPT_MAX_SAMPLES"

#: All ranks have the same; the files are those of rank 0.
_MUST_AGREE = (VARIABLE, COMPRESSION_VARIABLE, WARMUP_VARIABLE, STEPS_VARIABLE, SAMPLES_VARIABLE)


@dataclass(frozen=True)
class Options:
    """Hold the options of Autotune.

    Attributes:
        compression: whether bfloat16 between hosts may be tried, which changes results.
        warmup: the samples at the beginning that do not count.
        steps: the steps that a sample measures.
        samples: the settings that are tried, the defaults included.
        log: the file of the log, or None.
        settings: the file of settings, or None.
    """

    compression: bool = False
    warmup: int = 3
    steps: int = 10
    samples: int = 20
    log: Path | None = None
    settings: Path | None = None


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Return whether the user asks for Autotune.

    Raises:
        ValueError: the variable is neither 0 nor 1.
    """
    return _flag(environ, VARIABLE)


def read(environ: Mapping[str, str]) -> Options:
    """Return the options.

    Raises:
        ValueError: a variable has no valid value.
    """
    return Options(
        _flag(environ, COMPRESSION_VARIABLE),
        _number(environ, WARMUP_VARIABLE, Options.warmup, least=0),
        _number(environ, STEPS_VARIABLE, Options.steps, least=1),
        _number(environ, SAMPLES_VARIABLE, Options.samples, least=1),
        _path(environ, LOG_VARIABLE),
        _path(environ, SETTINGS_VARIABLE),
    )


def description(environ: Mapping[str, str]) -> str:
    """Return the variables that must be the same on all ranks, as a text; "" without Autotune."""
    if environ.get(VARIABLE, "") in ("", "0"):
        return ""
    variables = {name: environ[name] for name in _MUST_AGREE if environ.get(name)}
    return " ".join(f"{name}={value}" for name, value in variables.items())


def _flag(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name, "")
    if text not in ("", "0", "1"):
        raise ValueError(f"{name} must be 0 or 1. Received: {text!r}")
    return text == "1"


def _number(environ: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and int(text) >= least):
        raise ValueError(f"{name} must be a whole number, {least} or more. Received: {text!r}")
    return int(text)


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    return Path(environ[name]) if environ.get(name) else None
