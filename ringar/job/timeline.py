"""A picture of what the collectives of all ranks do, for Perfetto (https://ui.perfetto.dev).

Each rank has two rows: its collectives, with the stretches of copying, reducing and waiting for a
named rank inside, and what is under way beside them: requests that wait for their turn, and
messages, from when they are asked for to their end. Times are of one clock. While
it is recorded, each rank writes a file of its own, `<path>.rank<r>`, which is valid JSON after
every event; in the end they are merged into `<path>`.

`ringarrun --timeline-filename t.json` records a whole job. The launcher merges the files, so that
this module does without TensorFlow and NumPy; `ringar.start_timeline` is in ringar/collectives/.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: Names the file for a whole job; set by the launcher, which merges when the job has ended.
VARIABLE = "RINGAR_TIMELINE"


def record(path: str, rank: int) -> None:
    """Begin the file of this rank.

    Args:
        path: the file that `merge` will make.
        rank: this rank.

    Raises:
        UnsupportedError: the file cannot be written.
    """
    from ringar.job import native  # which needs NumPy

    native.check(native.library().ringar_start_timeline(f"{path}.rank{rank}".encode(), rank))


def merge(path: str | Path) -> int:
    """Merge the ranks' files into one and remove them.

    Args:
        path: the file to make.

    Returns:
        How many ranks' files there were; without any, nothing is made.
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
