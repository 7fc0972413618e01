"""At which sizes should the engine change its algorithm?

    python -m benchmarks.collectives.crossover          # measures and prints
    python -m benchmarks.collectives.crossover --write  # writes tf_ops/engine/tuning_table.inc

Finds three sizes for each number of ranks (tf_ops/engine/tuning.h says what they do). RINGAR_TUNING
sets each candidate, all of them in turn and in several rounds:

slice
    an allreduce of 1, 4 and 16 MiB with each; the smallest whose times are within 3% of the best.
small
    allreduces of doubling sizes with one exchange and with blocks; the largest up to which one
    exchange is never slower.
inline
    what waking the engine's thread adds to an op of 4 KiB; the largest size that the engine
    reduces in that time. Measured once, with the first number of ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from statistics import median

from benchmarks.collectives.measure import measure_peer
from benchmarks.harness import command, machine, report
from benchmarks.harness.processes import JobFailedError
from benchmarks.harness.report import KIB, MIB
from benchmarks.harness.series import slowest_rank

TABLE = machine.ROOT / "tf_ops" / "engine" / "tuning_table.inc"

SLICES = [32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB]
SLICE_SIZES = [MIB, 4 * MIB, 16 * MIB]
SMALL_SIZES = [KIB << n for n in range(1, 10)]
NEVER, ALWAYS = 0, 2**40

Times = dict[int, float]
"""Seconds by size."""

Choice = tuple[int, int, int, int]
"""Up to so many ranks: bytes of a slice, of a small allreduce, of an inline request."""


@contextmanager
def tuned(text: str) -> Iterator[None]:
    """Sets RINGAR_TUNING for the ranks that are started within this context."""
    os.environ["RINGAR_TUNING"] = text
    try:
        yield
    finally:
        del os.environ["RINGAR_TUNING"]


def measure(
    peer: str, ranks: int, sizes: list[int], tunings: list[str], rounds: int
) -> list[Times]:
    """Returns the median time of each size under each tuning.

    Raises:
        JobFailedError: a job did not end well.
    """
    series: list[dict[int, list[float]]] = [{size: [] for size in sizes} for _ in tunings]
    options = {"collective": "allreduce", "sizes": sizes, "budget_bytes": 128 * MIB}
    for number in range(rounds):
        for tuning, times in zip(tunings, series, strict=True):
            print(f"round {number + 1} of {rounds}: {ranks} ranks, {tuning}", file=sys.stderr)
            with tuned(tuning):
                reports = measure_peer(peer, ranks, options, deadline=300)
            if any(result["wrong"] for r in reports for result in r["results"]):
                raise JobFailedError(f"wrong results with RINGAR_TUNING={tuning}")
            for index, size in enumerate(sizes):
                times[size].append(median(slowest_rank(reports, index)))
    return [{size: median(values) for size, values in times.items()} for times in series]


def choose_slice(times: list[Times]) -> int:
    """Returns the smallest slice within 3% of the best, in the geometric mean over the sizes."""
    means = [prod(t.values()) ** (1 / len(t)) for t in times]
    return next(s for s, mean in zip(SLICES, means, strict=True) if mean <= 1.03 * min(means))


def choose_small(one_exchange: Times, blocks: Times) -> int:
    """Returns the largest size up to which one exchange is never slower, or 0."""
    best = 0
    for size in sorted(one_exchange):
        if one_exchange[size] > blocks[size]:
            break
        best = size
    return best


def choose_inline(woken: float, inline: float, engine: Times) -> int:
    """Returns the largest size that the engine reduces while its thread would wake up."""
    return max((size for size, t in engine.items() if t <= woken - inline), default=0)


def choose(ranks: int, rounds: int, inline: int | None) -> Choice:
    """Measures on so many ranks, prints the times, and chooses."""
    slices = measure("ringar_engine", ranks, SLICE_SIZES, [f"slice={s}" for s in SLICES], rounds)
    chosen = choose_slice(slices)
    print(f"\n## {ranks} ranks: slice {report.size_text(chosen)}\n")
    rows = [[report.size_text(s), *(report.time_text(t[n]) for n in SLICE_SIZES)]
            for s, t in zip(SLICES, slices, strict=True)]  # fmt: skip
    print(report.table(["slice", *map(report.size_text, SLICE_SIZES)], rows))

    sizes = [size for size in SMALL_SIZES if size <= chosen * ranks]
    tunings = [f"slice={chosen},small={small}" for small in (ALWAYS, NEVER)]
    one_exchange, blocks = measure("ringar_engine", ranks, sizes, tunings, rounds)
    small = choose_small(one_exchange, blocks)
    print(f"\n## {ranks} ranks: small up to {report.size_text(small)}\n")
    rows = [[report.size_text(size), report.time_text(one_exchange[size]),
             report.time_text(blocks[size])] for size in sizes]  # fmt: skip
    print(report.table(["size", "one exchange", "blocks"], rows))

    if inline is not None:
        return ranks, chosen, small, inline

    tunings = [f"inline={limit}" for limit in (NEVER, ALWAYS)]
    woken, inlined = (t[4 * KIB] for t in measure("ringar_op", ranks, [4 * KIB], tunings, rounds))
    engine = {**{size: min(one_exchange[size], blocks[size]) for size in sizes},
              **slices[SLICES.index(chosen)]}  # fmt: skip
    inline = choose_inline(woken, inlined, engine)
    print(
        f"\n{ranks} ranks: an op of 4 KiB takes {report.time_text(woken)} through the engine's "
        f"thread, {report.time_text(inlined)} without: inline up to {report.size_text(inline)}"
    )
    return ranks, chosen, small, inline


def table_text(choices: list[Choice]) -> str:
    """Returns the table as C++, in which slices shrink beyond the last number of ranks."""
    head = (
        "// Written by `python -m benchmarks.collectives.crossover --write`: for up to so many "
        "ranks,\n// bytes of a slice, of a small allreduce, of a request that is run by the thread "
        "that issues it.\n// clang-format off\n"
    )
    last, slice_bytes, small, inline = choices[-1]
    rows = [f"{{{', '.join(map(str, choice))}}}," for choice in choices]
    for ranks in (2 * last, 4 * last, 8 * last):
        shrunk = max(8 * KIB, slice_bytes * last // ranks)
        name = "SIZE_MAX" if ranks == 8 * last else str(ranks)
        rows.append(f"{{{name}, {shrunk}, {min(small, shrunk * ranks)}, {inline}}},")
    return head + "\n".join(rows) + "\n"


def main() -> int:
    parser = command.parser("benchmarks.collectives.crossover", __doc__, output=None)
    parser.add_argument("--ranks", default="2,4,8", help="numbers of ranks (default 2,4,8)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each case (default 3)")
    parser.add_argument("--write", action="store_true", help="write the table; then build again")
    options = parser.parse_args()
    print(f"# crossovers: {machine.headline(machine.describe())}")
    choices: list[Choice] = []
    for ranks in sorted({int(ranks) for ranks in options.ranks.split(",")}):
        choices.append(choose(ranks, options.rounds, choices[0][3] if choices else None))
    text = table_text(choices)
    print(f"\n{text}")
    if options.write:
        TABLE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
