"""Draws what crosses a cut, for `benchmarks.partitioned`: the picture of docs/partitioned.md.

    python -m benchmarks.partitioned.plot build/partitioned.json docs/pictures/partitioned.png

Left a plane of 12 x 12 pixels on four ranks, and what one of them gets for kernels of 5 x 5; right
what layers of three kinds send, by the number of ranks.
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness import report
from benchmarks.harness.plot import main, pyplot, save

SIDE, REACH, TILES = 12, 2, 2
COLORS = {"tile": "#2f8fd8", "halo": "#e8963a", "other": "#dfe6ee"}
KINDS = {"local": "#3a9e6f", "convolution": "#2f8fd8", "dense": "#d1495b"}


def draw_halo(axes: Any) -> None:
    """Draws the tile of rank 0, and the pixels that it gets from the others."""
    from matplotlib.patches import Rectangle

    half = SIDE // TILES
    for row in range(SIDE):
        for column in range(SIDE):
            inside = row < half and column < half
            reached = row < half + REACH and column < half + REACH
            color = COLORS["tile" if inside else "halo" if reached else "other"]
            axes.add_patch(Rectangle((column, row), 0.92, 0.92, facecolor=color, linewidth=0))
    for rank in range(TILES * TILES):
        row, column = divmod(rank, TILES)
        axes.text(column * half + half / 2 + 0.6 * column, row * half + half / 2 + 0.45,
                  f"rank {rank}", ha="center", va="center", fontsize=10,
                  color="white" if rank == 0 else "0.3")  # fmt: skip
    cut, ends = [half - 0.04] * 2, [-0.4, SIDE + 0.3]
    axes.plot(cut, ends, color="0.2", linewidth=1.6)
    axes.plot(ends, cut, color="0.2", linewidth=1.6)
    across = (half + REACH) ** 2 - half**2
    text = (
        f"Rank 0's kernels of 5 x 5 read its {half * half} pixels (blue),\n"
        f"and {across} of the other ranks (orange). Each of these\n"
        "is sent to it once, those of the corner by rank 3."
    )
    axes.text(0, SIDE + 0.7, text, fontsize=9, va="top", color="0.25")
    axes.set_xlim(-0.6, SIDE + 0.5)
    axes.set_ylim(SIDE + 3.1, -0.6)
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set_title("What crosses the cut", loc="left", fontsize=11, fontweight="bold")


def draw_bytes(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Draws bars of the bytes that a rank sends in a step."""
    ranks = sorted({row["ranks"] for row in rows if row["ranks"] > 1})
    width = 0.26
    for place, (kind, color) in enumerate(KINDS.items()):
        for at, count in enumerate(ranks):
            matches = [r for r in rows if (r["kind"], r["ranks"]) == (kind, count)]
            if not matches:
                continue
            volume = matches[0]["bytes"]
            x = at + (place - 1) * width
            axes.bar(
                x, volume / report.KIB, width * 0.92, color=color, label=kind if not at else ""
            )
            axes.text(x, volume / report.KIB, report.size_text(int(volume)), ha="center",
                      va="bottom", fontsize=8)  # fmt: skip
    axes.set_ylim(top=axes.get_ylim()[1] * 1.1)
    axes.set_xticks(range(len(ranks)), [f"{count} ranks" for count in ranks])
    axes.set_ylabel("KiB of activations that a rank sends per step")
    axes.set_title("Layers of equally many activations", loc="left", fontsize=11,
                   fontweight="bold")  # fmt: skip
    axes.legend(frameon=False, loc="upper left", title="connections")
    axes.spines[["top", "right"]].set_visible(False)


def draw(data: dict[str, Any], path: str) -> None:
    """Writes the picture of what `benchmarks.partitioned` has measured."""
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(10.5, 4.9), width_ratios=(1, 1.15))
    draw_halo(left)
    draw_bytes(right, data["equal"])
    figure.subplots_adjust(left=0.02, right=0.985, top=0.92, bottom=0.08, wspace=0.16)
    save(figure, path)


if __name__ == "__main__":
    main("benchmarks.partitioned.plot", __doc__, draw=draw)
