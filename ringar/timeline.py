"""A picture of what the collectives of all ranks do, for Perfetto (https://ui.perfetto.dev).

Each rank has two rows: its collectives, with the stretches of copying, reducing and waiting for a
named rank inside, and what is under way beside them: requests that wait for their turn, and
messages, from when they are asked for to their end. Times are of one clock. While
it is recorded, each rank writes a file of its own, ``<path>.rank<r>``, which is valid JSON after
every event; in the end they are merged into ``<path>``.

``ringarrun --timeline-filename t.json`` records a whole job.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: Names the file for a whole job; set by the launcher, which merges when the job has ended.
VARIABLE = "RINGAR_TIMELINE"


def start_timeline(path: str | Path) -> None:
    """Begins to record this rank's collectives. Every rank calls it, with the same path.

    Args:
        path: the file that :func:`stop_timeline` will make.

    Raises:
        NotInitializedError: before ``ringar.init()``.
        UnsupportedError: the file cannot be written.
    """
    record(str(Path(path).resolve()))


def stop_timeline(path: str | Path) -> None:
    """Ends the recording and merges the ranks' files. Collective over all ranks.

    Args:
        path: as for :func:`start_timeline`.
    """
    from ringar import native, runtime
    from ringar.collectives import barrier

    native.library().ringar_stop_timeline()
    barrier(name="stop_timeline")
    if runtime.rank() == 0:
        merge(path)
    barrier(name="stop_timeline")


def record(path: str) -> None:
    """Begins this rank's own file."""
    from ringar import native, runtime

    rank = runtime.rank()
    native.check(native.library().ringar_start_timeline(f"{path}.rank{rank}".encode(), rank))


def merge(path: str | Path) -> int:
    """Makes one file of the ranks' files and removes those.

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
