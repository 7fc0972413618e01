"""Timelines of a part of a program; see `ringar.job.timeline`."""

from __future__ import annotations

from pathlib import Path

from ringar.job import place, timeline


def start_timeline(path: str | Path) -> None:
    """Begin to record this rank's collectives.

    Every rank calls it, with the same path.

    Args:
        path: the file that `ringar.stop_timeline` writes.

    Raises:
        NotInitializedError: before `ringar.init()`.
        UnsupportedError: the file cannot be written.
    """
    timeline.record(str(Path(path).resolve()), place.rank())


def stop_timeline(path: str | Path) -> None:
    """End the recording and merge the ranks' files.

    Collective over all ranks.

    Args:
        path: as for `ringar.start_timeline`.
    """
    from ringar.collectives import barrier
    from ringar.job import native, place

    native.library().ringar_stop_timeline()
    barrier(name="stop_timeline")
    if place.rank() == 0:
        timeline.merge(path)
    barrier(name="stop_timeline")
