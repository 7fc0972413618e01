"""The targets of ringar beside the figures of a kind of machine.

    python -m benchmarks.targets         on this kind, as it was recorded
    python -m benchmarks.targets --all   on all kinds that were recorded
    make bench-targets                   measures on this machine, then prints them

Bounds differ between machines whose cores share a cache and others (`python -m benchmarks.rates`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.collectives.__main__ import DEFAULT_SIZES
from benchmarks.harness import command, machine, results
from benchmarks.harness import targets as bounds
from benchmarks.harness.command import parse_size
from benchmarks.harness.report import KIB, MIB
from benchmarks.harness.targets import Target
from benchmarks.peers.ringar_group import RESNET50_BYTES
from benchmarks.quick import epochs, starts
from benchmarks.rates.__main__ import share_a_cache, text

Row = dict[str, Any]
NAN = float("nan")
SIZES = [parse_size(size) for size in DEFAULT_SIZES]
MOVES = ("allreduce", "allgather", "broadcast")
PEERS = {"Open MPI": "openmpi", "MPICH": "mpich", "Intel MPI": "intelmpi"}


class Figures:
    """Looks up the figures of a kind of machine, which are NaN where a measurement is missing."""

    def __init__(self, runs: Mapping[str, results.Run]) -> None:
        self.rates: list[Row] = runs.get("rates", {}).get("rows", [])
        self._allreduce: dict[tuple[str, str, int], Row] = {
            (name, row["peer"], row["bytes"]): row
            for name, run in runs.items()
            if name.startswith("allreduce-")
            for row in run["rows"]
        }
        self._steps: dict[tuple[str, str, int], Row] = {
            (row["model"], row["way"], row["processes"]): row
            for row in runs.get("steps", {}).get("rows", [])
        }
        self._calls: dict[tuple[str, int, str], float] = {
            (row["collective"], row["bytes"], row["way"]): row["seconds"]
            for row in runs.get("calls", {}).get("rows", [])
        }
        self._rows = {
            name: {row[key]: row for row in runs.get(name, {}).get("rows", [])}
            for name, key in (("epochs", "title"), ("starts", "title"), ("crowd", "cores"))
        }

    def seconds(
        self, peer: str, size: int, run: str = "allreduce-2-ranks", key: str = "seconds"
    ) -> float:
        """Returns the median, or another figure of the row, named by `key`."""
        return float(self._allreduce.get((run, peer, size), {}).get(key, NAN))

    def ratios(
        self, peer: str, other: str, sizes: list[int], run: str = "allreduce-2-ranks"
    ) -> list[float]:
        """Returns the time of a peer over that of the other one, for each size."""
        return [self.seconds(peer, size, run) / self.seconds(other, size, run) for size in sizes]

    def steps(self, model: str, processes: int, of: str) -> list[float]:
        """Returns percentages of steps/s of plain processes ("of_plain") or of "of_bound".

        They are those under `fit` and, where it was measured, in a loop.
        """
        rows = [self._steps.get((model, way, processes), {}) for way in ("fit", "loop")]
        return [100 * row.get(of, NAN) for row in rows if row] or [NAN]

    def calls(self, collective: str, way: str) -> list[float]:
        """Returns the time of a small call over that of mpi4py's, for each size."""
        sizes = [size for name, size, of in self._calls if (name, of) == (collective, "mpi4py")]
        return [
            self._calls.get((collective, size, way), NAN) / self._calls[collective, size, "mpi4py"]
            for size in sizes
        ] or [NAN]

    def figure(self, run: str, row: Any, name: str) -> float:
        """Returns a figure of the row of "epochs", "starts" or "crowd" that has this key."""
        return float(self._rows[run].get(row, {}).get(name, NAN))


def targets(f: Figures) -> list[Target]:
    """Returns all targets."""
    shared = bool(f.rates) and share_a_cache(f.rates)
    small = [size for size in SIZES if size <= 64 * KIB]
    middle = [size for size in SIZES if 256 * KIB <= size <= 16 * MIB]
    large = [64 * MIB, 256 * MIB]
    added = f.seconds("ringar_op", 4 * KIB) - f.seconds("empty_op", 4 * KIB, key="fastest")
    titles = [epochs.title(data, 2) for data in epochs.DATA]
    group = f.ratios("ringar_group", "ringar_engine", [RESNET50_BYTES], "allreduce-group")

    def faster(sizes_text: str, sizes: list[int], of_both: float, of_intel: float) -> list[Target]:
        of = {"Open MPI": of_both, "MPICH": of_both, "Intel MPI": of_intel}
        return [
            Target(f"allreduce {sizes_text}, of {title}", bound, "x",
                   f.ratios(PEERS[title], "ringar_engine", sizes))
            for title, bound in of.items()
        ]  # fmt: skip

    def small_calls(way: str, title: str, names: tuple[str, ...], bound: float) -> list[Target]:
        return [
            Target(f"{name} of {title}, up to 16 KiB, of mpi4py's", bound, "x", f.calls(name, way),
                   at_most=True)
            for name in names
        ]  # fmt: skip

    return [
        *faster("4 B to 64 KiB, engine", small, 2, 1.2),
        *faster("256 KiB to 16 MiB", middle, 2.5 if shared else 1.5, 1.2),
        *faster("64 MiB, 256 MiB", large, 4.5 if shared else 2.5, 1.6),
        Target("allreduce 64 MiB in place, of a memcpy", 0.8 if shared else 1.3, "x",
               f.ratios("ringar_in_place", "memcpy", [64 * MIB]), at_most=True),
        Target("allreduce 64 MiB, four ranks, of Open MPI", 3.5, "x",
               f.ratios("openmpi", "ringar_engine", [64 * MIB], "allreduce-4-ranks")),
        Target("tiny MLP, two ranks, of the bound of a step", 95, "%",
               f.steps("mlp", 2, "of_bound")),
        Target("small CNN, two ranks, of the bound of a step", 95, "%",
               f.steps("small_cnn", 2, "of_bound")),
        Target("214 gradients of ResNet-50, 102 MB, grouped, of one array", 1.05, "x", group,
               at_most=True),
        Target("one rank of plain Keras, tiny MLP and small CNN", 99, "%",
               [*f.steps("mlp", 1, "of_plain"), *f.steps("small_cnn", 1, "of_plain")]),
        Target("allreduce 4 KiB in tf.function, beyond the fastest call of an empty op", 60, " us",
               [1e6 * added], at_most=True),
        Target("barrier, of mpi4py's", 3, "x", f.calls("barrier", "NumPy")[:1], at_most=True),
        *small_calls("NumPy", "NumPy arrays", MOVES, 3),
        *small_calls("eager tensor", "eager tensors", MOVES, 4.5),
        Target("begin of an epoch, two ranks, median", 15, " ms",
               [1e3 * f.figure("epochs", title, "seconds") for title in titles], at_most=True),
        Target("begin of an epoch, two ranks, longest", 60, " ms",
               [1e3 * f.figure("epochs", title, "max") for title in titles], at_most=True),
        Target("job of two ranks that add NumPy arrays, in all", 1, " s",
               [f.figure("starts", starts.title_here(2), "until_end")], at_most=True),
        Target("4 ranks on 2 cores, examples/s, of 2 ranks", 85, "%",
               [100 * f.figure("crowd", 2, "of_fewer")]),
        Target("2 ranks on one core, examples/s, of one rank", 85, "%",
               [100 * f.figure("crowd", 1, "of_fewer")]),
    ]  # fmt: skip


def table_text(kind: results.Kind) -> str:
    """Returns the table of a kind of machine, under its processor and its rates."""
    figures = Figures(kind["runs"])
    rates = text(figures.rates) + "\n" if figures.rates else ""
    return f"# {results.headline(kind)}\n{rates}\n{bounds.table(targets(figures))}\n"


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("benchmarks.targets", __doc__, output=None)
    parser.add_argument("--all", action="store_true", help="all kinds of machines")
    options = parser.parse_args(arguments)
    path = results.path_here(machine.describe())
    if not options.all and not path.exists():
        print(f"nothing was measured on this kind of machine ({path.stem}): make bench-targets",
              file=sys.stderr)  # fmt: skip
        return 1
    kinds = results.load_all() if options.all else [results.load(path)]
    print("\n".join(table_text(kind) for kind in kinds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
