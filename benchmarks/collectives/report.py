"""The rows and the table of a collective, as nccl-tests has them."""

from __future__ import annotations

from typing import Any

from benchmarks import peers
from benchmarks.harness.definitions import DEFINITIONS, ROOT_RANK
from benchmarks.harness.report import size_text, spread, table
from benchmarks.harness.series import Series


def rows(
    series: dict[tuple[str, int], Series],
    ranks: int,
    names: list[str],
    collective: str = "allreduce",
) -> list[dict[str, Any]]:
    """Returns the table as plain data, size by size."""
    definition = DEFINITIONS[collective]
    summaries = []
    order = {name: i for i, name in enumerate(names)}
    for (name, size), figures in sorted(series.items(), key=lambda kv: (kv[0][1], order[kv[0][0]])):
        elements = definition.elements(size, ranks)
        algbw = 4 * elements / figures.seconds / 1e9
        summaries.append(
            {
                "collective": collective,
                "bytes": 4 * elements,
                "elements": elements // ranks if definition.parted else elements,
                "type": "float32",
                "redop": definition.redop,
                "root": ROOT_RANK if collective == "broadcast" else -1,
                "peer": name,
                "title": peers.load(name).TITLE,
                "algbw": algbw,
                "busbw": algbw * definition.factor(ranks),
                **figures.summary(),
            }
        )
    return summaries


def table_text(rows: list[dict[str, Any]]) -> str:
    """Returns the columns of nccl-tests, with the peer and the spread of the rounds."""
    headers = ["size", "count", "type", "redop", "root", "peer", "time", "min", "max",
               "algbw GB/s", "busbw GB/s", "#wrong"]  # fmt: skip
    return table(
        headers,
        [
            [size_text(row["bytes"])]
            + [row[key] for key in ("elements", "type", "redop", "root", "title")]
            + spread(row)
            + [f"{row['algbw']:.3g}", f"{row['busbw']:.3g}", row["wrong"]]
            for row in rows
        ],
    )
