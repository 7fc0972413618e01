"""What the environment says about the choice of an algorithm, seen in the bytes that are sent."""

from __future__ import annotations

import sys

import ringar
from tests.faults.job import attempt, works
from tests.hosts.traffic import bytes_between_hosts


def main() -> None:
    nbytes, other = int(sys.argv[2]), sys.argv[3]
    ringar.init(deadline=30)
    attempt("chosen", bytes_between_hosts(None, nbytes))
    attempt("argument", bytes_between_hosts(other, nbytes))
    attempt("works at the end", works)


if __name__ == "__main__":
    main()
