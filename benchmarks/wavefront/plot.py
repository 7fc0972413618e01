"""Draws the cells of a step of training: the picture of docs/wavefront.md.

    python -m benchmarks.wavefront.plot build/wavefront.json docs/pictures/wavefront.png

A row per layer, time to the right; a box is a chunk of a layer, forward or backward, with its
number, in the color of its rank. What lies on a diagonal runs at the same time.
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness.plot import main, pyplot, save

COLORS = [("#a9cbe8", "#2474b5"), ("#f5c98f", "#d97b1f"), ("#b7dfb4", "#3c8d40"),
          ("#d9c2e9", "#7d4fa5")]  # fmt: skip
"""Forward and backward, of each rank."""
NUMBERED = 0.012
"""From which part of the picture's width on a box has its number."""


def draw(data: dict[str, Any], path: str) -> None:
    """Writes the picture of what `benchmarks.wavefront` has measured.

    Raises:
        ValueError: nothing was measured that it could show.
    """
    from matplotlib.patches import Rectangle

    ranks = [[event for event in events if event["what"] != "wait"] for events in data["timeline"]]
    if not any(ranks):
        raise ValueError("expected the cells of a job of several ranks; received none")
    begin = min(event["begin"] for events in ranks for event in events)
    span = max(event["end"] for events in ranks for event in events) - begin
    layers = data["job"]["layers"]
    figure, axes = pyplot().subplots(figsize=(10, 1.3 + 0.45 * layers))
    for rank, events in enumerate(ranks):
        forward, backward = COLORS[rank % len(COLORS)]
        for event in events:
            left, width = event["begin"] - begin, event["end"] - event["begin"]
            color = forward if event["what"] == "forward" else backward
            axes.add_patch(Rectangle(
                (1e3 * left, event["layer"] - 0.4), 1e3 * width, 0.8, facecolor=color,
                edgecolor="white", linewidth=0.8,
            ))  # fmt: skip
            if width > NUMBERED * span:
                ink = "0.15" if event["what"] == "forward" else "white"
                axes.text(1e3 * (left + width / 2), event["layer"], str(event["chunk"]),
                          ha="center", va="center", fontsize=8, color=ink)  # fmt: skip
    axes.set_yticks(range(layers), [f"layer {layer}" for layer in range(layers)])
    axes.set_ylim(-0.55, layers - 0.45)
    axes.set_xlim(0, 1e3 * span)
    axes.set_xlabel("ms")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    boxes, names = [], []
    for rank in range(len(ranks)):
        for color, kind in zip(COLORS[rank % len(COLORS)], ("forward", "backward"), strict=True):
            boxes.append(Rectangle((0, 0), 1, 1, color=color))
            names.append(f"rank {rank}, {kind}")
    figure.tight_layout(rect=(0, 0, 1, 0.9))
    figure.legend(boxes, names, ncols=len(boxes), frameon=False, fontsize=9, loc="upper left")
    save(figure, path)


if __name__ == "__main__":
    main("benchmarks.wavefront.plot", __doc__, draw=draw)
