"""Predicted allreduce times beside measured ones, read from a file.

The file is JSON, as `benchmarks.hosts` writes it:

    {"parameters": {"latency": 1e-4, "bandwidth": 2.4e7, "reduction": 4e9,
                    "local_latency": 5e-6, "local_bandwidth": 8e9},
     "rows": [{"hosts": 2, "ranks_per_host": 1, "bytes": 33554432, "seconds": 1.35,
               "algorithm": "ring"}, ...]}

`tried` may have a list `hosts` of the numbers that must be among the rows; 2, 4 and 8 without it.
`parameters` are those of `ringar.cost_model.Parameters`, measured on the same hosts before the rows
were; a row may have its own, for a link of another rate. `seconds` is the median of the slowest
rank, `algorithm` one of ring, recursive_doubling, hierarchical and auto. Other keys are ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import report
from ringar import cost_model

TOLERANCE = 0.15
"""How far a predicted time may be from the measured one, as a part of it."""

HOSTS = (2, 4, 8)
"""Numbers of hosts that must be among the rows, if a file names no others."""


@dataclass(frozen=True)
class Row:
    """A measured allreduce, and the seconds that the model predicts."""

    hosts: int
    ranks_per_host: int
    bytes: int
    algorithm: str
    seconds: float
    predicted: float

    @property
    def off(self) -> float:
        """The prediction's error as a part of what was measured; positive if too slow."""
        return self.predicted / self.seconds - 1

    @property
    def within(self) -> bool:
        """Whether the prediction is near enough."""
        return abs(self.off) <= TOLERANCE


_KEYS = {"hosts": int, "ranks_per_host": int, "bytes": int, "seconds": float, "algorithm": str}


def _row(values: Any, common: Any, where: str) -> Row:
    if not isinstance(values, dict):
        raise ValueError(f"{where}: expected an object, received {values!r}")
    if gaps := [key for key in _KEYS if key not in values]:
        raise ValueError(f"{where}: missing {', '.join(gaps)}; expected {', '.join(_KEYS)}")
    for key, kind in _KEYS.items():
        value = values[key]
        accepted = (int, float) if kind is float else (kind,)
        if isinstance(value, bool) or not isinstance(value, accepted):
            raise ValueError(f"{where}: {key}: expected {kind.__name__}, received {value!r}")
        if isinstance(value, int | float) and value <= 0:
            raise ValueError(f"{where}: {key}: expected more than 0, received {value}")
    parameters = cost_model.from_dict(values.get("parameters", common), f"{where}: parameters")
    case = values["hosts"], values["ranks_per_host"]
    try:
        predicted = cost_model.allreduce_seconds(
            parameters, values["bytes"], *case, values["algorithm"]
        )
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return Row(*case, values["bytes"], values["algorithm"], values["seconds"], predicted)


def read(path: str | Path) -> tuple[list[Row], list[int]]:
    """Reads the rows of a file and adds predictions; and the numbers of hosts that it must have.

    Raises:
        ValueError: if the file is not of the form above.
    """
    try:
        data = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: expected JSON with measured times: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("rows"), list):
        raise ValueError(f"{path}: expected an object with a list `rows`")
    common = data.get("parameters")
    rows = [_row(row, common, f"{path}: row {i}") for i, row in enumerate(data["rows"])]
    return rows, data.get("tried", {}).get("hosts", HOSTS)


def check(path: str | Path) -> tuple[str, bool]:
    """Returns a table of a file's rows, and whether all are there and near their prediction.

    Raises:
        ValueError: as `read`.
    """
    rows, hosts = read(path)
    headers = ["hosts", "ranks per host", "size", "algorithm", "measured", "predicted", "off",
               f"within {TOLERANCE:.0%}"]  # fmt: skip
    lines = [
        [row.hosts, row.ranks_per_host, report.size_text(row.bytes), row.algorithm,
         report.time_text(row.seconds), report.time_text(row.predicted), f"{row.off:+.1%}",
         "yes" if row.within else "no"]
        for row in rows
    ]  # fmt: skip
    text = report.table(headers, lines)
    gaps = [str(n) for n in hosts if n not in {row.hosts for row in rows}]
    if gaps:
        text += f"\nnot measured: {', '.join(gaps)} hosts"
    return text, not gaps and all(row.within for row in rows)
