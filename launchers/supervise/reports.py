"""The reports of guards on the ends of their ranks, which the launcher reads."""

from __future__ import annotations

import re

CONSEQUENCE = "it had lost a peer"
_REPORT = (
    rb"ringarrun %s\.\d+: (?P<text>rank (?P<rank>\d+) of \d+ on \S+ (?:(?P<well>ended well)|"
    rb"(?:failed|was killed).* (?P<kind>exit code|signal) (?P<number>\d+)(?P<rest>.*)))$"
)


def reports(job: str) -> re.Pattern[bytes]:
    """Return the pattern of the lines in which guards of `job` report the end of their ranks.

    A report may stand behind the unfinished line of another rank, for mpirun passes the output of
    ranks on in pieces. The job's name in it tells it from the output of the ranks.

    Guards report an end without fault, too: after the death of a whole host, Open MPI's mpirun ends
    with exit code 0, and only the missing report tells.
    """
    return re.compile(_REPORT % re.escape(job.encode()))


def report(job: str, rank: int, size: int, host: str, ending: str) -> str:
    """Return the line that reports the end of a rank; `job` is the guard's, with its number."""
    return f"ringarrun {job}: rank {rank} of {size} on {host} {ending}"
