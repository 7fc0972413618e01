"""Prints the slowest tests of the JUnit files in a folder: `python -m tests.slowest FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

COUNT = 30


def slowest(folder: Path, count: int = COUNT) -> list[tuple[float, str, str]]:
    """Returns seconds, run and test of the `count` slowest in the JUnit files of `folder`."""
    tests = [
        (float(case.get("time", 0)), report.stem, f"{case.get('classname')}.{case.get('name')}")
        for report in folder.glob("*.xml")
        for case in ElementTree.parse(report).iter("testcase")
    ]
    return sorted(tests, reverse=True)[:count]


def main() -> None:
    """Prints the table for the folder that the first argument names."""
    print(f"=== the {COUNT} slowest tests, with their fixtures")
    for seconds, run, test in slowest(Path(sys.argv[1])):
        print(f"{seconds:7.1f} s  {run:8}  {test}")


if __name__ == "__main__":
    main()
