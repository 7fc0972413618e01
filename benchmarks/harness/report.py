"""Tables and JSON files of measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

KIB, MIB = 2**10, 2**20


def table(headers: list[str], rows: list[list[Any]]) -> str:
    """Returns a Markdown table, which reads well in a terminal, too."""
    from tabulate import tabulate

    return str(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True))


def size_text(size: int) -> str:
    """Returns a size as 4 B, 64 KiB or 16 MiB."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} B"


def time_text(seconds: float) -> str:
    """Returns a time with three digits, in us, ms or s."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def spread(row: dict[str, Any]) -> list[str]:
    """Returns the median of a row, the least and the greatest of its rounds."""
    return [time_text(row[key]) for key in ("seconds", "min", "max")]


def missing_lines(reasons: dict[str, str]) -> str:
    """Returns a line for each case that has no figures, with the reason."""
    return "".join(f"{title}: not measured ({why})\n" for title, why in reasons.items())


def write_json(path: str, data: dict[str, Any]) -> None:
    """Writes `path`.json."""
    target = Path(path).with_suffix(".json")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(data, indent=1) + "\n")
