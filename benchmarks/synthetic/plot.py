"""Draws accuracies over epochs, and steps over time while a rank is stopped.

python -m benchmarks.synthetic.plot build/synthetic.json docs/pictures/synthetic.png
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness.plot import main, pyplot, save

STYLES = {"true gradients, waited for": ("black", "-"), "none below the last module": ("0.6", "-")}
COLORS = ("#2474b5", "#d97b1f")


def draw(data: dict[str, Any], path: str) -> None:
    """Writes the picture of what `benchmarks.synthetic` has measured."""
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(11, 5.2))
    for row in data["rows"]:
        curves = list(zip(*row["accuracies"], strict=True))
        means = [100 * sum(values) / len(values) for values in curves]
        color, line = STYLES.get(row["way"], (None, "-"))
        left.plot(range(1, len(means) + 1), means, line, color=color, label=row["way"], lw=1.5)
    left.xaxis.get_major_locator().set_params(integer=True)
    left.set_title("Accuracy by epoch", loc="left", fontsize=10)
    left.set_xlabel("epochs")
    left.set_ylabel("accuracy on other images, %")
    for row, color in zip(data["stops"], COLORS, strict=False):
        for rank, (ends, line) in enumerate(zip(row["ends"], ("-", ":"), strict=True)):
            right.plot(ends, range(1, len(ends) + 1), line, color=color,
                       label=f"{row['way']}, rank {rank}")  # fmt: skip
        right.axvspan(0, row["seconds"], color="0.93", zorder=0)
    seconds = max((row["seconds"] for row in data["stops"]), default=1.0)
    right.set_xlim(-0.5 * seconds, 2.5 * seconds)
    counts = [sum(end < 2.5 * seconds for end in row["ends"][0]) for row in data["stops"]]
    right.set_ylim(0, 1.1 * max(counts, default=1))
    right.set_title("Steps while a rank is stopped", loc="left", fontsize=10)
    right.set_xlabel("seconds; rank 1 is stopped in the gray part")
    right.set_ylabel("steps done")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": 2}
        axes.legend(frameon=False, fontsize=8, **below)
    figure.tight_layout()
    save(figure, path)


if __name__ == "__main__":
    main("benchmarks.synthetic.plot", __doc__, draw=draw)
