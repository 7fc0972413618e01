"""Draws the bytes of a rank by the number of ranks: the picture of docs/sharded.md.

    python -m benchmarks.sharded.plot build/sharded.json docs/pictures/sharded.png

Lines are the formulas, of the bytes per float32 parameter with Adam; points are the
measured weights and slots, with gradients by their shapes.
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness.plot import main, pyplot, save

RANKS = range(1, 9)
COLORS = {"none": "0.4", "optimizer": "#2474b5", "gradients": "#d97b1f", "weights": "#4a9c4a"}


def held_by_formula(shard: str, ranks: int) -> float:
    """Returns the bytes of weights and slots per parameter."""
    return (4 / ranks if shard == "weights" else 4) + 8 / ranks


def per_parameter(shard: str, ranks: int, memory: float) -> float:
    """Returns the bytes of weights, gradients and slots per parameter."""
    return (4 / ranks if shard in ("gradients", "weights") else 4) + memory


def draw(data: dict[str, Any], path: str) -> None:
    """Draws lines and points."""
    figure, axes = pyplot().subplots(figsize=(6.4, 4), layout="constrained")
    for shard, color in COLORS.items():
        cut = [1 if shard == "none" else ranks for ranks in RANKS]
        line = [per_parameter(shard, n, held_by_formula(shard, n)) for n in cut]
        label = "no shards" if shard == "none" else f'shard="{shard}"'
        axes.plot(list(RANKS), line, color=color, label=label)
    measured = [row for row in data["rows"] if "held" in row and row["shard"] in COLORS]
    for row in measured:
        height = per_parameter(row["shard"], row["ranks"], 4 * row["held"] / row["weights"])
        axes.plot(row["ranks"], height, "o", color=COLORS[row["shard"]])
    axes.set(xlabel="ranks", ylabel="bytes per parameter on a rank", ylim=(0, 17.5))
    axes.set_xticks(list(RANKS))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left")
    save(figure, path)


if __name__ == "__main__":
    main("benchmarks.sharded.plot", __doc__, draw=draw)
