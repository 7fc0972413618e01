"""The cells that `benchmarks.scan` measures and their times, as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

STEPS = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000)
BATCHES = (2, 4, 8, 16, 32, 64, 128, 256)
UNITS, SMALL = 20, (1, 2, 4, 8)
LARGE = ((100, 16, 256), (100, 64, 256), (20, 64, 1024))
WHATS = ("forward", "backward", "step")
SHORTEST = 1e-6
"""Seconds: the backward pass where noise makes a step shorter than its forward pass."""

Turn = tuple[float, float, float]
"""Seconds forward, back, and of a whole step; back is a difference of the other two."""


@dataclass(frozen=True)
class Cell:
    """A size: `batch` sequences of `steps` bits, an RNN of `units`."""

    steps: int
    batch: int
    units: int = UNITS

    def __str__(self) -> str:
        units = f", H = {self.units}" if self.units != UNITS else ""
        return f"T = {self.steps}, B = {self.batch}{units}"

    @property
    def jacobian_bytes(self) -> int:
        """The bytes of all Jacobians at once."""
        return 4 * self.steps * self.batch * self.units**2


@dataclass(frozen=True)
class Place:
    """The processes that share a batch, and their threads."""

    title: str
    ranks: int
    threads: int


ONE, TWO, RANKS = Place("1 thread", 1, 1), Place("2 threads", 1, 2), Place("2 ranks", 2, 1)
PLACES = {place.title: place for place in (ONE, TWO, RANKS)}
CENTER = Cell(1000, 16)


def grid(quick: bool = False) -> list[Cell]:
    """Returns the paper's cells: first those by steps, then the others by batch."""
    if quick:
        return [Cell(10, 16), Cell(60, 16), Cell(60, 2)]
    by_steps = [Cell(steps, 16) for steps in STEPS]
    by_batch = [Cell(1000, batch) for batch in BATCHES]
    return list(dict.fromkeys(by_steps + by_batch))


def small_cells(quick: bool = False) -> list[Cell]:
    """Returns cells with few units, where a product costs little more than a vector."""
    if quick:
        return [Cell(60, 16, 2)]
    sizes = [(1000, 16), (10, 16), (1000, 2), (1000, 256)]
    return [Cell(*size, units) for size in sizes for units in SMALL]


def large_cells(quick: bool = False) -> list[Cell]:
    """Returns cells whose time is that of products of matrices."""
    return [Cell(10, 16, 64)] if quick else [Cell(*size) for size in LARGE]


def is_by_steps(cell: Cell) -> bool:
    """Returns whether a cell of the grid is one of those with growing sequences."""
    return cell.batch == 16


@dataclass
class Times:
    """The times of a cell in a place: by way and round, the seconds of each of WHATS."""

    rounds: dict[str, list[Turn]] = field(default_factory=dict)
    jacobians: list[float] = field(default_factory=list)
    """Seconds of the op that makes all Jacobians, by round; none where they need too much."""

    def of(self, way: str, phase: str) -> list[float]:
        """Returns seconds by round."""
        return [max(turn[WHATS.index(phase)], SHORTEST) for turn in self.rounds[way]]

    def seconds(self, way: str, phase: str) -> float:
        return median(self.of(way, phase))

    def best(self, ways: Iterable[str], phase: str) -> str:
        """Returns the fastest of some ways."""
        candidates = [way for way in ways if way in self.rounds]
        return min(candidates, key=lambda way: self.seconds(way, phase))

    def faster(self, way: str, than: str, phase: str) -> float:
        """Returns how many times faster a way is: median over rounds, each compared with itself."""
        pairs = zip(self.of(than, phase), self.of(way, phase), strict=True)
        return median(baseline / seconds for baseline, seconds in pairs)


def slowest(reports: list[dict[str, Any]]) -> Times:
    """Returns the times of the slowest rank, given the reports of all ranks on a cell."""
    ways = {
        way: [
            (max(t[0] for t in turn), max(t[1] for t in turn), max(t[2] for t in turn))
            for turn in zip(*(r["rounds"][way] for r in reports), strict=True)
        ]
        for way in reports[0]["rounds"]
    }
    jacobians = [max(turn) for turn in zip(*(r["jacobians"] for r in reports), strict=True)]
    return Times(ways, jacobians)


Outcome = dict[Place, dict[Cell, Times]]


def to_rows(outcome: Outcome) -> list[dict[str, Any]]:
    """Returns rows for a JSON file, from which pictures are drawn."""
    rows = []
    for place, cells in outcome.items():
        for cell, times in cells.items():
            ways = {
                way: {"rounds": rounds, **{
                    phase: {"seconds": times.seconds(way, phase), "min": min(times.of(way, phase)),
                            "max": max(times.of(way, phase))} for phase in WHATS}}
                for way, rounds in times.rounds.items()
            }  # fmt: skip
            size = {"steps": cell.steps, "batch": cell.batch, "units": cell.units}
            rows.append({"place": place.title, **size, "ways": ways, "jacobians": times.jacobians})
    return rows


def from_rows(rows: list[dict[str, Any]]) -> Outcome:
    """Reads the rows that `to_rows` has made."""
    outcome: Outcome = {}
    for row in rows:
        rounds = {way: [(turn[0], turn[1], turn[2]) for turn in entry["rounds"]]
                  for way, entry in row["ways"].items()}  # fmt: skip
        cell = Cell(row["steps"], row["batch"], row["units"])
        outcome.setdefault(PLACES[row["place"]], {})[cell] = Times(rounds, row["jacobians"])
    return outcome
