"""The choices of `collectives.crossover` from times that are made up, and its table."""

from __future__ import annotations

from benchmarks.collectives import crossover
from benchmarks.harness.report import KIB, MIB


def test_the_smallest_slice_near_the_best_is_chosen() -> None:
    times = [dict.fromkeys(crossover.SLICE_SIZES, t) for t in (1.2, 1.02, 1.0, 1.01, 1.5)]
    assert crossover.choose_slice(times) == crossover.SLICES[1]


def test_small_ends_where_blocks_first_win() -> None:
    one_exchange = {2 * KIB: 1.0, 4 * KIB: 2.0, 8 * KIB: 4.0, 16 * KIB: 4.0}
    blocks = {2 * KIB: 1.5, 4 * KIB: 2.0, 8 * KIB: 3.0, 16 * KIB: 5.0}
    assert crossover.choose_small(one_exchange, blocks) == 4 * KIB
    assert crossover.choose_small({2 * KIB: 2.0}, {2 * KIB: 1.0}) == 0


def test_inline_is_what_fits_into_a_wake_up() -> None:
    engine = {64 * KIB: 3e-6, MIB: 40e-6, 4 * MIB: 170e-6}
    assert crossover.choose_inline(110e-6, 60e-6, engine) == MIB
    assert crossover.choose_inline(60e-6, 60e-6, engine) == 0


def test_slices_shrink_beyond_the_ranks_that_were_measured() -> None:
    lines = crossover.table_text([(2, 256 * KIB, 32 * KIB, MIB), (4, 64 * KIB, 64 * KIB, MIB)])
    rows = [line for line in lines.splitlines() if not line.startswith("//")]
    assert rows == [
        "{2, 262144, 32768, 1048576},",
        "{4, 65536, 65536, 1048576},",
        "{8, 32768, 65536, 1048576},",
        "{16, 16384, 65536, 1048576},",
        "{SIZE_MAX, 8192, 65536, 1048576},",
    ]


def test_the_table_in_use_has_this_form() -> None:
    text = crossover.TABLE.read_text()
    rows = [line for line in text.splitlines() if not line.startswith("//")]
    parsed = [tuple(row.strip("{},").split(", ")) for row in rows]
    ranks = [int(row[0]) for row in parsed[:-1]]
    assert ranks == sorted(ranks)
    assert parsed[-1][0] == "SIZE_MAX"
    assert all(int(number) % 4096 == 0 for row in parsed for number in row[1:2])
