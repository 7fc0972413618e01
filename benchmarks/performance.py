"""Writes the tables of performance in the documentation from benchmarks/results/.

    make performance                          writes them
    python -m benchmarks.performance --check  fails if they are out of date; `make lint` asks this

Each kind of machine has a page in docs/performance/, which is made where it is missing: name a new
one in mkdocs.yml. The README and docs/performance.md have a table with a row per kind. Tables stand
between a pair of marks; around them is what a person has written.
"""

from __future__ import annotations

import re
import sys
from math import isnan
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.harness import command, machine, report, results
from benchmarks.harness import targets as bounds
from benchmarks.harness.report import KIB, MIB, size_text, table, time_text
from benchmarks.rates.__main__ import text as rates_text
from benchmarks.targets import PEERS, SIZES, Figures, targets

README = machine.ROOT / "README.md"
PAGE = machine.ROOT / "docs" / "performance.md"
FOLDER = machine.ROOT / "docs" / "performance"
ALL = "all"
SMALL = 4 * KIB  # bytes of a call from Python
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
    """Returns a table of the training steps of ringar, a row per model, way and number of ranks."""
    lines = [
        [row["model"], f"`{row['way']}`", row["processes"], time_text(row["seconds"]),
         f"{row['of_plain']:.1%}", f"{row['of_bound']:.1%}"]
        for row in rows
    ]  # fmt: skip
    headers = ["training", "by", "ranks", "step", "of plain processes", "of the bound"]
    return table(headers, lines)


def calls_text(rows: list[dict[str, Any]]) -> str:
    """Returns a table of calls from Python, a row per collective and size."""
    times = {(row["collective"], row["bytes"], row["way"]): row["seconds"] for row in rows}
    ways = list(dict.fromkeys(row["way"] for row in rows))
    lines = [
        [name, size_text(size)]
        + [time_text(times[name, size, way]) if (name, size, way) in times else "" for way in ways]
        for name, size in dict.fromkeys((row["collective"], row["bytes"]) for row in rows)
    ]
    return table(["call from Python, two ranks", "bytes", *ways], lines)


def tables(kind: results.Kind) -> str:
    """Returns all that the page says of a kind of machine, in Markdown."""
    runs, figures = kind["runs"], Figures(kind["runs"])
    parts = [f"**{results.headline(kind)}.**"]
    if figures.rates:
        parts[0] += f" {rates_text(figures.rates)}"
    if "allreduce-2-ranks" in runs:
        parts += [f"Measured {when(runs['allreduce-2-ranks'])}:", allreduce_text(runs)]
    if "steps" in runs:
        parts += [f"Measured {when(runs['steps'])}:", steps_text(runs["steps"]["rows"])]
    if "calls" in runs:
        parts += [f"Measured {when(runs['calls'])}:", calls_text(runs["calls"]["rows"])]
    measured = [target for target in targets(figures) if not all(map(isnan, target.measured))]
    return strip_padding("\n\n".join([*parts, bounds.table(measured)]))


def strip_padding(text: str) -> str:
    """Returns tables without padding, so that a changed figure changes its line alone."""
    return re.sub(r"-{3,}", "---", re.sub(r" {2,}", " ", text))


def summary(kinds: list[results.Kind], folder: str) -> str:
    """Returns a table with a row per kind of machine, in Markdown.

    Args:
        kinds: what was measured on each.
        folder: the path to the pages of kinds, from the page that the table is for.
    """
    sizes = (4 * KIB, MIB, 256 * MIB)
    small = [f"`ringar.allreduce` of a NumPy array of {size_text(SMALL)}"]
    if not any("calls" in kind["runs"] for kind in kinds):
        small = []
    lines = []
    for kind in kinds:
        runs = kind["runs"]
        by_peer = {
            (row["peer"], row["bytes"]): row
            for row in runs.get("allreduce-2-ranks", {}).get("rows", [])
        }
        cells = [_beside(by_peer, size) for size in sizes] + [_small_call(runs) for _ in small]
        name = results.name_of(kind["cpu"], kind["cores"])
        lines.append([f"[{results.headline(kind)}]({folder}{name}.md)", *cells, _cnn_step(runs)])
    headers = ["two ranks", *(f"allreduce of {size_text(size)}" for size in sizes),
               *small,
               "step of a small CNN under `fit`; steps/s, of plain processes"]  # fmt: skip
    return strip_padding(table(headers, lines))


def _beside(by_peer: dict[tuple[str, int], dict[str, Any]], size: int) -> str:
    """Returns a time of ringar with its spread, and the one of Open MPI."""
    row, peer = (by_peer.get((name, size)) for name in ("ringar_engine", PEERS["Open MPI"]))
    text = _with_spread(row) if row else ""
    return f"{text}; Open MPI {time_text(peer['seconds'])}" if row and peer else text


def _small_call(runs: dict[str, results.Run]) -> str:
    """Returns the time of an allreduce that Python calls, and those of mpi4py and of a tensor."""
    by_way = {
        row["way"]: row
        for row in runs.get("calls", {}).get("rows", [])
        if (row["collective"], row["bytes"]) == ("allreduce", SMALL)
    }
    if not by_way:
        return ""
    titles = {"eager tensor": "an eager tensor", "mpi4py": "mpi4py"}
    texts = [f"{text} {time_text(by_way[way]['seconds'])}" for way, text in titles.items()]
    return "; ".join([_with_spread(by_way["NumPy"]), *texts])


def _cnn_step(runs: dict[str, results.Run]) -> str:
    for row in runs.get("steps", {}).get("rows", []):
        if (row["model"], row["way"], row["processes"]) == ("small_cnn", "fit", 2):
            return f"{_with_spread(row)}; {row['of_plain']:.1%}"
    return ""


def _with_spread(row: dict[str, Any]) -> str:
    median, least, greatest = report.spread(row)
    return f"**{median}** ({least} to {greatest})"


def texts(kinds: list[results.Kind]) -> dict[Path, dict[str, str]]:
    """Returns what stands between the marks of each page, by page and by the name of the marks."""
    names = {results.name_of(kind["cpu"], kind["cores"]): kind for kind in kinds}
    return {
        PAGE: {ALL: summary(kinds, "performance/")},
        README: {ALL: summary(kinds, "docs/performance/")},
        **{FOLDER / f"{name}.md": {name: tables(kind)} for name, kind in names.items()},
    }


def fill_page(page: str, blocks: dict[str, str]) -> str:
    """Returns the page with these texts between its marks.

    Raises:
        ValueError: a text has no marks, or marks have no text.
    """
    marked = [name for name, _ in BLOCK.findall(page)]
    if sorted(marked) != sorted(blocks):
        raise ValueError(
            f"expected marks for {', '.join(sorted(blocks))}, received marks for "
            f"{', '.join(sorted(marked)) or 'nothing'}. Marks are the lines "
            f"{BEGIN.format('KIND')} and {END}, KIND as in benchmarks/results/KIND.json"
        )
    return BLOCK.sub(lambda m: f"{BEGIN.format(m[1])}\n\n{blocks[m[1]]}\n\n{END}", page)


def first_page(kind: results.Kind) -> str:
    """Returns the page of a kind of machine that has none yet."""
    name = results.name_of(kind["cpu"], kind["cores"])
    about = "[How figures are measured, and the other kinds](../performance.md)."
    return f"# {results.headline(kind)}\n\n{about}\n\n{BEGIN.format(name)}\n{END}\n"


def pages(kinds: list[results.Kind]) -> dict[Path, str]:
    """Returns all pages with current tables.

    Raises:
        ValueError: the marks of a page are not those of its texts.
    """
    new = {FOLDER / f"{results.name_of(k['cpu'], k['cores'])}.md": first_page(k) for k in kinds}
    blocks = texts(kinds)
    for path in FOLDER.glob("*.md"):
        blocks.setdefault(path, {})  # a page of a kind without figures has marks without a text
    filled = {}
    for path, of_page in blocks.items():
        page = path.read_text() if path.exists() else new[path]
        try:
            filled[path] = fill_page(page, of_page)
        except ValueError as error:
            raise ValueError(f"{path.relative_to(machine.ROOT)}: {error}") from error
    return filled


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("benchmarks.performance", __doc__, output=None)
    parser.add_argument("--check", action="store_true", help="writes nothing")
    options = parser.parse_args(arguments)
    try:
        current = pages(results.load_all())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    old = [p for p, text in current.items() if not p.exists() or p.read_text() != text]
    for path in old:
        name = path.relative_to(machine.ROOT)
        if options.check:
            print(f"{name}: its tables are out of date: make performance", file=sys.stderr)
        else:
            print(f"{name}: written")
            path.write_text(current[path])
    return 1 if options.check and old else 0


if __name__ == "__main__":
    sys.exit(main())
