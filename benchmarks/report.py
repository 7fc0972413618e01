"""Tables, JSON and pictures of measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def table(headers: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table, which reads well in a terminal, too."""
    from tabulate import tabulate

    return str(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True))


def size_text(size: int) -> str:
    """4 B, 64 KiB, 16 MiB."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def time_text(seconds: float) -> str:
    """Three digits, in us, ms or s."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def allreduce_table(rows: list[dict[str, Any]]) -> str:
    """The columns of nccl-tests, with the peer and the spread of the rounds."""
    headers = ["size", "count", "type", "redop", "peer", "time", "min", "max", "algbw GB/s",
               "busbw GB/s", "#wrong"]  # fmt: skip
    return table(
        headers,
        [
            [size_text(row["bytes"]), row["elements"], row["type"], row["redop"], row["title"]]
            + [time_text(row[key]) for key in ("seconds", "min", "max")]
            + [f"{row['algbw']:.3g}", f"{row['busbw']:.3g}", row["wrong"]]
            for row in rows
        ],
    )


def write_json(path: str, data: dict[str, Any]) -> None:
    """Writes ``path``.json."""
    target = Path(path).with_suffix(".json")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(data, indent=1) + "\n")


def plot_allreduce(path: str, rows: list[dict[str, Any]], ranks: int) -> None:
    """Draws time against size for each peer to ``path``.png."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5))
    for title in dict.fromkeys(row["title"] for row in rows):
        mine = [row for row in rows if row["title"] == title]
        ours = title.startswith("ringar")
        style = "k--" if "memcpy" in title else "-" if ours else ":"
        axes.plot([r["bytes"] for r in mine], [r["seconds"] * 1e6 for r in mine], style,
                  marker=".", linewidth=2.2 if ours else 1.4, label=title)  # fmt: skip
    sizes = sorted({row["bytes"] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [size_text(size) for size in sizes], rotation=45, ha="right")
    axes.set_ylabel("time of one allreduce, us (median)")
    axes.set_title(f"Allreduce of float32 on {ranks} ranks of one machine")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(Path(path).with_suffix(".png"), dpi=130)
    plt.close(figure)
