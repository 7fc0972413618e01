"""The parameters of the network and the hosts, and files of them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "RINGAR_COST_MODEL"
"""Names a file with parameters, in place of a measurement."""


@dataclass(frozen=True)
class Parameters:
    """Describe the network and the hosts, in seconds and bytes per second.

    Attributes:
        latency: seconds of a short message between hosts, while all hosts send at once.
        bandwidth: bytes/s that one host sends to another, in one direction, while it receives as
            many.
        reduction: bytes/s of received data that a rank adds to its own.
        local_latency: seconds until the ranks of a host have waited for each other once.
        local_bandwidth: bytes/s that a rank copies within its host, while the others copy, too.

    Raises:
        ValueError: a latency is negative, a rate not positive, or either not finite.
    """

    latency: float
    bandwidth: float
    reduction: float
    local_latency: float
    local_bandwidth: float

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"`{name}`: expected a number, received {value!r}")
            if not math.isfinite(value):
                raise ValueError(f"`{name}`: expected a finite number, received {value}")
            if name.endswith("latency") and value < 0:
                raise ValueError(f"`{name}`: expected seconds, 0 or more, received {value}")
            if not name.endswith("latency") and value <= 0:
                raise ValueError(f"`{name}`: expected bytes/s, more than 0, received {value}")


def save(path: str | Path, parameters: Parameters) -> None:
    """Write parameters to a JSON file, which `load` and RINGAR_COST_MODEL read."""
    Path(path).write_text(json.dumps(dataclasses.asdict(parameters), indent=1) + "\n")


def from_dict(values: object, where: str) -> Parameters:
    """Return parameters from plain data; `where` names the source in errors.

    Raises:
        ValueError: a key is missing or unknown, or a value is not a number or out of range.
    """
    names = [field.name for field in dataclasses.fields(Parameters)]
    if not isinstance(values, dict):
        raise ValueError(
            f"{where}: expected an object with {', '.join(names)}, received {values!r}"
        )
    if gaps := [name for name in names if name not in values]:
        raise ValueError(f"{where}: missing {', '.join(gaps)}; expected {', '.join(names)}")
    if extras := sorted(set(values) - set(names)):
        raise ValueError(f"{where}: unknown {', '.join(extras)}; expected {', '.join(names)}")
    try:
        return Parameters(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def load(path: str | Path) -> Parameters:
    """Read parameters from a JSON file as `save` writes it.

    Raises:
        ValueError: the file cannot be read, is not JSON, or is not an object of five numbers.
    """
    try:
        values = json.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected a file with parameters: {error}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: expected JSON, received something else: {error}") from error
    return from_dict(values, str(path))


def from_environment(environ: Mapping[str, str]) -> Parameters | None:
    """Return the parameters in the file that RINGAR_COST_MODEL names; None if it is not set.

    Raises:
        ValueError: as `load`; the message begins with the variable.
    """
    path = environ.get(VARIABLE, "")
    if not path:
        return None
    try:
        return load(path)
    except ValueError as error:
        raise ValueError(f"{VARIABLE}={error}") from error
