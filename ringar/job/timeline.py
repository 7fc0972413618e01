"""Timelines of the collectives of all ranks, for Perfetto (https://ui.perfetto.dev).

Each rank has two rows for each process set. The first shows its collectives, with the spans of
copying, reducing and waiting for a named rank inside. The second shows the requests that wait for
their ticket, and messages, from the call to their end. All times are of one clock. During the
recording each rank writes a file, `<path>.rank<r>`, which is valid JSON after every event; `merge`
makes `<path>` of them.

`ringarrun --timeline-filename t.json` records a whole job. The launcher merges the files, so that
this module needs neither TensorFlow nor NumPy. `ringar.start_timeline` is in ringar/collectives/.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: Names the file for a whole job. The launcher sets it, and merges after the job's end.
VARIABLE = "RINGAR_TIMELINE"


def record(path: str, rank: int, generation: int = 0) -> None:
    """Begin the file of this rank.

    Args:
        path: the file that `merge` writes later.
        rank: this rank.
        generation: of the ranks of an elastic job; each has files of its own.

    Raises:
        UnsupportedError: the file cannot be written.
    """
    from ringar.job import native  # needs NumPy

    suffix = f".{generation}" if generation > 1 else ""
    native.check(
        native.library().ringar_start_timeline(f"{path}.rank{rank}{suffix}".encode(), rank)
    )


def merge(path: str | Path) -> int:
    """Merge the ranks' files into one and remove them.

    Args:
        path: the file to write.

    Returns:
        The number of ranks' files; with 0, `merge` writes nothing.
    """
    target = Path(path).resolve()
    parts = sorted(target.parent.glob(f"{target.name}.rank*"))
    events: list[dict[str, Any]] = []
    for part in parts:
        events += json.loads(part.read_text())
    if not parts:
        return 0
    begin = min((event["ts"] for event in events if "ts" in event), default=0.0)
    for event in events:
        if "ts" in event:
            event["ts"] = round(event["ts"] - begin, 3)
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    target.write_text(f"[\n{lines}\n]\n")
    for part in parts:
        part.unlink()
    return len(parts)
