"""Draws AlexNet's traffic on two ranks, for `benchmarks.split`: the picture of docs/parallel.md.

    python -m benchmarks.split.plot build/split.json docs/pictures/parallel.png

A column per layer, a row per rank. A box is as high as the part of the layer's kernels that the
rank holds; arrows are activations and their gradients, bars under a column gradients of weights.
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness import report
from benchmarks.harness.plot import main, pyplot, save

LAYERS = ("images", "conv1", "conv2", "conv3", "conv4", "conv5", "fc6", "fc7", "fc8", "join")
DENSE = LAYERS[6:9]
TITLES = {
    "data-parallel": "Data-parallel: gradients travel, of every layer",
    "split as in the paper": "Split as in the paper: activations travel, into some layers",
    "hybrid": "Hybrid: gradients of the convolutions, activations of the dense layers",
}
SPLIT = {"data-parallel": (), "split as in the paper": LAYERS[1:9], "hybrid": DENSE}
COLORS = {"whole": "#c9d6e3", "part": "#2f8fd8", "activations": "#d1495b", "gradients": "#e8963a"}
ROWS = (1.35, 0.0)  # heights of the ranks' centers
HEIGHT, WIDTH = 0.9, 0.52


def _boxes(axes: Any, plan: str) -> None:
    """Draws the layers of both ranks."""
    from matplotlib.patches import FancyBboxPatch

    for column, layer in enumerate(LAYERS[1:-1], 1):
        is_part = layer in SPLIT[plan]
        height = HEIGHT * (0.5 if is_part else 1.0)
        for center in ROWS:
            axes.add_patch(FancyBboxPatch(
                (column - WIDTH / 2, center - height / 2), WIDTH, height, linewidth=0,
                boxstyle="round,pad=0,rounding_size=0.06",
                facecolor=COLORS["part" if is_part else "whole"],
            ))  # fmt: skip
            axes.text(column, center, layer, ha="center", va="center", fontsize=8.5,
                      color="white" if is_part else "0.25")  # fmt: skip
    for row, center in enumerate(ROWS):
        images = "images" if plan == "split as in the paper" else f"images of rank {row}"
        axes.text(0.42, center, f"rank {row}\n{images}", ha="right", va="center", fontsize=8.5)


def _arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], color: str) -> None:
    axes.annotate("", end, start, arrowprops={
        "arrowstyle": "-|>", "color": color, "linewidth": 1.1, "shrinkA": 1, "shrinkB": 1
    })  # fmt: skip


def _activations(axes: Any, volumes: dict[str, float]) -> None:
    """Draws arrows where activations travel, with the bytes of a rank and step."""
    for column, layer in enumerate(LAYERS[1:], 1):
        for center in ROWS:  # within a rank, from layer to layer
            start = column - 1 + (WIDTH / 2 if column > 1 else 0.45)
            _arrow(axes, (start, center), (column - WIDTH / 2, center), "0.6")
            if layer == "join":
                axes.text(column - WIDTH / 2 + 0.03, center, "logits", va="center", fontsize=8.5)
        if volumes.get(layer, 0) <= 0:
            continue
        left, right = column - 1 + WIDTH / 2, column - WIDTH / 2
        top, bottom = ROWS
        _arrow(axes, (left, top - 0.12), (right, bottom + 0.12), COLORS["activations"])
        _arrow(axes, (left, bottom + 0.12), (right, top - 0.12), COLORS["activations"])
        axes.text(column - 0.5, ROWS[0] + 0.53, report.size_text(int(volumes[layer])), ha="center",
                  fontsize=7.5, color=COLORS["activations"])  # fmt: skip


def _gradients(axes: Any, plan: str, volume: float) -> None:
    """Draws bars below the layers that both ranks have whole."""
    columns = [i for i, layer in enumerate(LAYERS) if 1 <= i <= 8 and layer not in SPLIT[plan]]
    if volume <= 0 or not columns:
        return
    level = ROWS[1] - 0.68
    axes.plot([columns[0] - WIDTH / 2, columns[-1] + WIDTH / 2], [level, level],
              color=COLORS["gradients"], linewidth=4, solid_capstyle="round")  # fmt: skip
    axes.text((columns[0] + columns[-1]) / 2, level - 0.12,
              f"allreduce of their gradients: {report.size_text(int(volume))}",
              ha="center", va="top", fontsize=8, color="#b36a12")  # fmt: skip


def draw(data: dict[str, Any], path: str) -> None:
    """Writes the picture of what `benchmarks.split` has measured."""
    rows = {row["plan"]: row for row in data["local"]}
    figure, panels = pyplot().subplots(len(TITLES), 1, figsize=(10, 8.6))
    for axes, (plan, title) in zip(panels, TITLES.items(), strict=True):
        volumes = rows[plan]["by_layer"]
        _boxes(axes, plan)
        _activations(axes, volumes)
        _gradients(axes, plan, volumes.get("gradients", 0))
        total = report.size_text(int(rows[plan]["bytes"]))
        millions = rows[plan]["parameters"] / 1e6
        axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold")
        text = f"{millions:.1f} million parameters per rank,\n{total} per step"
        axes.text(9.2, ROWS[0] + 0.72, text, ha="right", va="bottom", fontsize=9)
        axes.set_xlim(-0.75, 9.25)
        axes.set_ylim(-1.15, 2.15)
        axes.axis("off")
    note = (
        f"Bytes that a rank sends per step of {data['job']['batch']} images, forward and back. "
        "Low boxes: the rank holds half of the kernels."
    )
    figure.text(0.06, 0.012, note, fontsize=8.5, color="0.35")
    figure.subplots_adjust(left=0.06, right=0.985, top=0.955, bottom=0.03, hspace=0.16)
    save(figure, path)


if __name__ == "__main__":
    main("benchmarks.split.plot", __doc__, draw=draw)
