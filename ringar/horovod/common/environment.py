"""Horovod's variables of the environment: those that are read, and those that are set."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, MutableMapping
from typing import TypedDict

from ringar.job import log, membership, place

#: Variables that scripts read. Before `init` a variable of ringar's launcher has the value.
_PLACE = {
    "HOROVOD_RANK": ("RINGAR_RANK", place.rank),
    "HOROVOD_SIZE": ("RINGAR_SIZE", place.size),
    "HOROVOD_LOCAL_RANK": ("RINGAR_LOCAL_RANK", place.local_rank),
    "HOROVOD_LOCAL_SIZE": ("RINGAR_LOCAL_SIZE", place.local_size),
    "HOROVOD_CROSS_RANK": ("RINGAR_CROSS_RANK", place.cross_rank),
    "HOROVOD_CROSS_SIZE": ("RINGAR_CROSS_SIZE", place.cross_size),
}
#: Variables that are read, and those of ringar that mean the same.
_SAME = {
    f"HOROVOD_AUTOTUNE{name}": f"RINGAR_AUTOTUNE{name}"
    for name in ("", "_LOG", "_WARMUP_SAMPLES", "_STEPS_PER_SAMPLE", "_BAYES_OPT_MAX_SAMPLES")
}
_LEVELS = {"TRACE": "DEBUG", "FATAL": "CRITICAL"}
_NEVER = 1e9  # seconds


class Times(TypedDict):
    """Hold the times of `ringar.init`, in seconds; None: ringar's own."""

    stall_warning: float | None
    deadline: float | None
    start_timeout: float | None


def publish(environ: MutableMapping[str, str]) -> None:
    """Set the variables that Horovod's launcher sets: HOROVOD_RANK and so on."""
    for name, (of_launcher, function) in _PLACE.items():
        if place.is_initialized():
            environ[name] = str(function())
        elif of_launcher in environ:
            environ[name] = environ[of_launcher]
    if "HOROVOD_RANK" in environ:  # horovodrun has set the name that the user gave to -H
        environ.setdefault("HOROVOD_HOSTNAME", platform.node())
    if membership.is_elastic():
        environ["HOROVOD_ELASTIC"] = "1"


def apply(environ: MutableMapping[str, str]) -> None:
    """Set each unset variable of ringar that has a counterpart of Horovod's."""
    if level := environ.get("HOROVOD_LOG_LEVEL", "").upper():
        environ.setdefault(log.VARIABLE, _LEVELS.get(level, level))
    for name, counterpart in _SAME.items():
        if name in environ:
            environ.setdefault(counterpart, environ[name])


def times(environ: Mapping[str, str]) -> Times:
    """Return the times for `ringar.init` from Horovod's variables; None: ringar's own.

    Raises:
        ValueError: a variable is no number.
    """
    warning = _seconds(environ, "HOROVOD_STALL_CHECK_TIME_SECONDS")
    if environ.get("HOROVOD_STALL_CHECK_DISABLE", "0") not in ("", "0"):
        warning = _NEVER

    def unless(variable: str, value: float | None) -> float | None:
        return None if variable in environ else value

    deadline = _seconds(environ, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")
    return {
        "stall_warning": unless("RINGAR_STALL_WARNING", warning),
        "deadline": unless("RINGAR_DEADLINE", deadline),
        "start_timeout": unless("RINGAR_START_TIMEOUT", _seconds(environ, "HOROVOD_START_TIMEOUT")),
    }


def bucket_bytes(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the size of gradients' buckets that HOROVOD_FUSION_THRESHOLD asks for, in bytes.

    Without the variable ringar chooses: None. 0, Horovod's "do not fuse", is a bucket for each
    gradient.
    """
    text = environ.get("HOROVOD_FUSION_THRESHOLD", "")
    if not text:
        return None
    if not text.isdecimal():
        raise ValueError(f"HOROVOD_FUSION_THRESHOLD must be a number of bytes. Received: {text!r}")
    return max(int(text), 1)


def _seconds(environ: Mapping[str, str], name: str) -> float | None:
    """Return a number of seconds; None where the variable is not set, or 0: never."""
    text = environ.get(name, "")
    try:
        return float(text or 0) or None
    except ValueError:
        raise ValueError(f"{name} must be a number of seconds. Received: {text!r}") from None
