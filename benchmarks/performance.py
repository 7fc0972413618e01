"""Writes the tables of docs/performance.md from benchmarks/results/.

    make performance                          writes them
    python -m benchmarks.performance --check  fails if they are out of date; `make lint` asks this

The page has a pair of marks for each kind of machine; between them are its tables, and around them
is what a person has written about them.
"""

from __future__ import annotations

import re
import sys
from math import isnan
from typing import Any

from benchmarks import peers
from benchmarks.harness import command, machine, results
from benchmarks.harness import targets as bounds
from benchmarks.harness.report import size_text, table, time_text
from benchmarks.rates.__main__ import text as rates_text
from benchmarks.targets import PEERS, SIZES, Figures, targets

PAGE = machine.ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- figures of {} -->", "<!-- end of figures -->"
BLOCK = re.compile(BEGIN.format("([^ ]+)") + "\n(.*?)" + END, re.DOTALL)
COLUMNS = ("ringar_engine", "ringar_in_place", *PEERS.values(), "gloo", "tensorflow_collectives",
           "memcpy")  # fmt: skip


def when(run: results.Run) -> str:
    """Returns the day of a run, and its commit and TensorFlow where they are known."""
    tensorflow = run["versions"].get("tensorflow")
    parts = [run["time"][:10], run["commit"] and f"commit {run['commit']}",
             tensorflow and f"TensorFlow {tensorflow}"]  # fmt: skip
    return ", ".join(filter(None, parts))


def allreduce_text(runs: dict[str, results.Run]) -> str:
    """Returns a table of the times of allreduce on two ranks, a column per peer."""
    times: dict[tuple[str, int], float] = {}
    for name in ("allreduce-slow-peers", "allreduce-2-ranks"):  # the latter has the last word
        rows = runs.get(name, {}).get("rows", [])
        times.update({(row["peer"], row["bytes"]): row["seconds"] for row in rows})
    shown = [peer for peer in COLUMNS if any((peer, size) in times for size in SIZES)]
    lines = [
        [size_text(size)]
        + [time_text(times[peer, size]) if (peer, size) in times else "" for peer in shown]
        for size in SIZES
        if any((peer, size) in times for peer in shown)
    ]
    headers = ["allreduce, two ranks", *(peers.load(peer).TITLE for peer in shown)]
    return table(headers, lines)


def steps_text(rows: list[dict[str, Any]]) -> str:
    """Returns a table of the training steps of ringar, a row per model and number of ranks."""

    def cell(row: dict[str, Any], key: str, form: str) -> str:
        return form.format(row[key]) if key in row else ""

    lines = [
        [row["model"], row["processes"], time_text(row["seconds"]) if "seconds" in row else "",
         cell(row, "of_plain", "{:.1%}"), cell(row, "of_bound", "{:.1%}")]
        for row in rows
        if row["ringar"]
    ]  # fmt: skip
    headers = ["training under `fit`", "ranks", "step", "of plain processes", "of the bound"]
    return table(headers, lines)


def tables(kind: results.Kind) -> str:
    """Returns all that the page says of a kind of machine, in Markdown."""
    runs, figures = kind["runs"], Figures(kind["runs"])
    parts = [f"**{results.headline(kind)}.**"]
    if figures.rates:
        parts[0] += f" {rates_text(figures.rates)}"
    if "allreduce-2-ranks" in runs:
        parts += [f"Measured {when(runs['allreduce-2-ranks'])}:", allreduce_text(runs)]
    if "overhead" in runs:
        parts += [f"Measured {when(runs['overhead'])}:", steps_text(runs["overhead"]["rows"])]
    measured = [target for target in targets(figures) if not all(map(isnan, target.measured))]
    return strip_padding("\n\n".join([*parts, bounds.table(measured)]))


def strip_padding(text: str) -> str:
    """Returns tables without padding, so that a changed figure changes its line alone."""
    return re.sub(r"-{3,}", "---", re.sub(r" {2,}", " ", text))


def fill_page(page: str, kinds: list[results.Kind]) -> str:
    """Returns the page with the tables of all kinds.

    Raises:
        ValueError: a kind has no marks, or marks have no kind.
    """
    by_name = {results.name_of(kind["cpu"], kind["cores"]): kind for kind in kinds}
    marked = [name for name, _ in BLOCK.findall(page)]
    if sorted(marked) != sorted(by_name):
        raise ValueError(
            f"expected marks for each kind in benchmarks/results/ ({', '.join(sorted(by_name))}), "
            f"received marks for {', '.join(sorted(marked))}. The marks of a kind are the lines "
            f"{BEGIN.format('KIND')} and {END}"
        )
    return BLOCK.sub(
        lambda match: f"{BEGIN.format(match[1])}\n\n{tables(by_name[match[1]])}\n\n{END}", page
    )


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("benchmarks.performance", __doc__, output=None)
    parser.add_argument("--check", action="store_true", help="writes nothing")
    options = parser.parse_args(arguments)
    page = PAGE.read_text()
    try:
        current = fill_page(page, results.load_all())
    except ValueError as error:
        print(f"docs/performance.md: {error}", file=sys.stderr)
        return 1
    if options.check and current != page:
        print("docs/performance.md: its tables are out of date: make performance", file=sys.stderr)
        return 1
    if current != page:
        PAGE.write_text(current)
    return 0


if __name__ == "__main__":
    sys.exit(main())
