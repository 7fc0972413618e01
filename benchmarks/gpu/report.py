"""The rows, tables and targets of measurements on GPUs."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.gpu.cases import GROUP, IN_PLACE, OUT_OF_PLACE, Case
from benchmarks.gpu.peers import PEERS
from benchmarks.harness.definitions import DEFINITIONS, ROOT_RANK
from benchmarks.harness.report import MIB, size_text, table
from benchmarks.harness.series import Series
from benchmarks.harness.targets import Target

KINDS = ("time", "events", "enqueue", "latency")
"""Of timings, as `benchmarks.gpu.worker` names them."""
Row = dict[str, Any]


def rows(reports: list[dict[str, Any]], cases: list[Case]) -> list[Row]:
    """Returns a row for each case and peer; "placements" has the figures of each placement."""
    rows_of_cases: dict[tuple[int, str], Row] = {}
    for of_all in zip(*(report["results"] for report in reports), strict=True):
        number, peer, placement = (of_all[0][key] for key in ("case", "peer", "placement"))
        row = rows_of_cases.setdefault((number, peer), _row(cases[number], peer, len(reports)))
        row["placements"][placement] = _figures(of_all, cases[number], len(reports))
    return [rows_of_cases[key] for key in sorted(rows_of_cases, key=lambda key: key[0])]


def _row(case: Case, peer: str, ranks: int) -> Row:
    definition = DEFINITIONS[case.collective]
    return {
        "collective": case.collective,
        "bytes": case.bytes,
        "elements": case.total // ranks if definition.parted else case.total,
        "arrays": len(case.parts) or 1,
        "type": case.dtype,
        "redop": definition.redop,
        "root": ROOT_RANK if case.collective == "broadcast" else -1,
        "peer": peer,
        "title": PEERS[peer].title,
        "placements": {},
    }


def _figures(of_all: tuple[dict[str, Any], ...], case: Case, ranks: int) -> dict[str, Any]:
    """Returns the times of the slowest rank, since a collective ends on all ranks."""
    rounds = list(zip(*(result["rounds"] for result in of_all), strict=True))
    figures: dict[str, Any] = {}
    for kind in KINDS:
        times = [[turn[kind] for turn in of_ranks] for of_ranks in rounds]
        lists = [[t if isinstance(t, list) else [t] for t in of_ranks] for of_ranks in times]
        summary = Series([max(of_ranks, key=median) for of_ranks in lists]).summary()
        figures[kind] = {key: summary[key] for key in ("seconds", "min", "max", "fastest")}
    algbw = case.bytes / figures["time"]["seconds"] / 1e9
    busbw = algbw * DEFINITIONS[case.collective].factor(ranks)
    errors = sum(turn["wrong"] for of_ranks in rounds for turn in of_ranks)
    return {**figures, "algbw": algbw, "busbw": busbw, "wrong": errors}


def wrong_elements(all_rows: list[Row]) -> int:
    """Counts the wrong elements of all cases, peers and placements."""
    return sum(figures["wrong"] for row in all_rows for figures in row["placements"].values())


def _microseconds(figures: dict[str, Any] | None, kind: str) -> list[str]:
    """Returns the median, and the least and greatest of the rounds."""
    if figures is None:
        return ["-", "-"]
    values = (1e6 * figures[kind][key] for key in ("seconds", "min", "max"))
    middle, least, most = (f"{value:.0f}" if value >= 1000 else f"{value:.3g}" for value in values)
    return [middle, f"{least}, {most}"]


def _placements(all_rows: list[Row]) -> list[str]:
    return [p for p in (OUT_OF_PLACE, IN_PLACE) if any(p in r["placements"] for r in all_rows)]


def throughput_table(all_rows: list[Row]) -> str:
    """Returns the columns of nccl-tests, with the peer and the spread of the rounds."""
    keys = ("elements", "type", "redop", "root", "arrays", "title")
    headers = ["size", "count", "type", "redop", "root", "arrays", "peer"]
    placements = _placements(all_rows)
    for placement in placements:
        headers += [f"{placement}: us", "min, max", "algbw GB/s", "busbw GB/s", "#wrong"]
    lines = []
    for row in all_rows:
        line = [size_text(row["bytes"]), *(str(row[key]) for key in keys)]
        for placement in placements:
            figures = row["placements"].get(placement)
            rates = ["-"] * 3
            if figures:
                rates = [*(f"{figures[key]:.3g}" for key in ("algbw", "busbw")),
                         str(figures["wrong"])]  # fmt: skip
            line += [*_microseconds(figures, "time"), *rates]
        lines.append(line)
    return table(headers, lines)


def latency_table(all_rows: list[Row]) -> str:
    """Returns the times of single calls, and the host's and the GPU's part of enqueued ones."""
    placements = _placements(all_rows)
    headers = ["size", "arrays", "peer"]
    for placement in placements:
        headers += [f"{placement}: us", "min, max"]
    headers += ["x NCCL", "enqueueing: us", "min, max", "between events: us", "min, max"]
    lines = []
    for row in all_rows:
        first = row["placements"].get(OUT_OF_PLACE)
        line = [size_text(row["bytes"]), str(row["arrays"]), row["title"]]
        for placement in placements:
            line += _microseconds(row["placements"].get(placement), "latency")
        share = ratio(row, find(all_rows, "nccl", row["bytes"], row["arrays"]), kind="latency")
        line.append("-" if share != share else f"{share:.3g}")
        lines.append([*line, *_microseconds(first, "enqueue"), *_microseconds(first, "events")])
    return table(headers, lines)


def find(all_rows: list[Row], peer: str, size: int, arrays: int = 1) -> Row | None:
    """Finds the row of a peer and size."""
    key = (peer, size, arrays)
    return next((r for r in all_rows if (r["peer"], r["bytes"], r["arrays"]) == key), None)


def ratio(
    row: Row | None, other: Row | None, placement: str = OUT_OF_PLACE, kind: str = "time"
) -> float:
    """Returns one time over another, or NaN where one was not measured."""
    if row is None or other is None:
        return float("nan")
    pair = [candidate["placements"].get(placement) for candidate in (row, other)]
    if not all(pair):
        return float("nan")
    return float(pair[0][kind]["seconds"] / pair[1][kind]["seconds"])


def targets(all_rows: list[Row], ranks: int) -> list[Target]:
    """Returns the targets of allreduce on one rank, or on several."""
    plain = [row for row in all_rows if row["arrays"] == 1 and row["peer"] == "ringar"]
    if not plain or plain[0]["collective"] != "allreduce":
        return []
    goals = []
    if ranks == 1:
        sizes = (64 * MIB, 256 * MIB)
        times = [ratio(find(all_rows, "ringar", s), find(all_rows, "copy", s)) for s in sizes]
        title = "allreduce 64 MiB, 256 MiB, one rank, against a copy on the device"
        goals.append(Target(title, 1.1, "x", times, at_most=True))
    for placement in (OUT_OF_PLACE, IN_PLACE):
        if ranks > 1:
            times = [ratio(r, find(all_rows, "nccl", r["bytes"]), placement) for r in plain]
            title = f"allreduce of {len(plain)} sizes, {placement}, against NCCL through CuPy"
            goals.append(Target(title, 1.05, "x", times, at_most=True))
        grouped = [row for row in all_rows if row["arrays"] > 1 and row["peer"] == "ringar"]
        times = [ratio(r, find(all_rows, "ringar", r["bytes"]), placement) for r in grouped]
        title = f"{len(GROUP)} gradients of ResNet-50, {placement}, against one array"
        goals.append(Target(title, 1.15, "x", times or [float("nan")], at_most=True))
    return goals
