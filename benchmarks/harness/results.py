"""The newest run of each benchmark on each kind of machine: one JSON file per kind.

A kind is a model of processor and a number of cores. Its file in benchmarks/results/ has

- `cpu` and `cores`;
- `runs`: by name, the last run of each benchmark, with its time, commit and versions, what it has
  `tried`, what is `missing`, and its figures, in most runs `rows`. Compare figures of one run only.

The files are part of the repository: `make performance` puts their tables into docs/performance/.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import machine, report

FOLDER = machine.ROOT / "benchmarks" / "results"

Kind = dict[str, Any]
Run = dict[str, Any]


def name_of(cpu: str, cores: int) -> str:
    """Returns the name of a kind of machine, which is that of its file: amd-epyc-2-cores."""
    plain = re.sub(r"\((R|TM)\)|\b(CPU|Processor)\b", " ", cpu, flags=re.IGNORECASE)
    return "-".join([*re.findall(r"[a-z0-9.]+", plain.lower()), str(cores), "cores"])


def load(path: Path) -> Kind:
    """Reads the file of a kind."""
    kind: Kind = json.loads(path.read_text())
    return kind


def load_all() -> list[Kind]:
    """Returns all kinds that were measured, in the order of their names."""
    return [load(path) for path in sorted(FOLDER.glob("*.json"))]


def path_here(host: dict[str, Any]) -> Path:
    """Returns the path of the file of this kind of machine, given its description."""
    return FOLDER / (name_of(host["cpu"], host["cores"]) + ".json")


def record(name: str, host: dict[str, Any], data: dict[str, Any]) -> None:
    """Puts a run into the file of this kind of machine, in place of the run of that name.

    A run that has tried less than the one before, as with fewer sizes or peers, leaves the file as
    it is and says so; a run with wrong results fails in any case, and is not recorded.

    Args:
        name: the benchmark, and the ranks where there may be several numbers of them.
        host: this machine, from `machine.describe`.
        data: `tried`, lists of options by name; `missing`, why cases have no figures; the figures.
    """
    if data.get("wrong") or any(row.get("wrong") for row in data.get("rows", [])):
        return
    path = path_here(host)
    kind = load(path) if path.exists() else {"cpu": host["cpu"], "cores": host["cores"], "runs": {}}
    before = kind["runs"].get(name)
    if before and not tries_all_of(before["tried"], data["tried"]):
        print(f"not recorded: {path.name} has a run of {name} with more cases, of {before['time']}",
              file=sys.stderr)  # fmt: skip
        return
    about = {key: host[key] for key in ("time", "commit", "versions", "python", "system")}
    kind["runs"][name] = {**about, **data}
    report.write_json(str(path), kind)


def keep(name: str, host: dict[str, Any], data: dict[str, Any], output: str | None) -> None:
    """Records a run, and writes it to `output`.json, too, if that is given."""
    record(name, host, data)
    if output:
        report.write_json(output, {"machine": host, **data})


def tries_all_of(before: dict[str, list[Any]], now: dict[str, list[Any]]) -> bool:
    """Returns whether each list of options contains the one that it had before."""
    return all(set(before[option]) <= set(now.get(option, [])) for option in before)


def headline(kind: Kind) -> str:
    """Returns the processor and the number of cores."""
    return f"{kind['cpu']}, {kind['cores']} cores"
