"""Draws objectives over rounds, for `benchmarks.scheduled`: the picture of docs/scheduled.md.

python -m benchmarks.scheduled.plot build/scheduled.json docs/pictures/scheduled.png
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness.plot import main, pyplot, save

COLORS = {
    "dynamic": "#2f8fd8",
    "round robin": "#e8963a",
    "random": "#7aa874",
    "dynamic, unchecked": "#d1495b",
    "round robin, unchecked": "#8c2f39",
}
FLOOR, CEILING = 1e-4, 1e2


def draw(data: dict[str, Any], path: str) -> None:
    """Writes the picture of what `benchmarks.scheduled` has measured."""
    share = data["job"]["share"]
    best = min(objective for row in data["rows"] for _, objective in row["curve"]) / (1 + share)
    figure, axes = pyplot().subplots(figsize=(8.4, 4.6))
    for row in data["rows"]:
        above = [(done, objective / best - 1) for done, objective in row["curve"]]
        shown = [(done, value) for done, value in above if value < CEILING]
        dashed = "unchecked" in row["scheduler"]
        axes.plot(
            *zip(*shown, strict=True), label=row["scheduler"], color=COLORS[row["scheduler"]],
            linestyle="--" if dashed else "-", linewidth=1.6,
        )  # fmt: skip
        if len(shown) < len(above):
            axes.plot(*shown[-1], marker="^", color=COLORS[row["scheduler"]])
    reached = [row["rounds"] for row in data["rows"] if row["rounds"]]
    axes.set_xlim(0, 1.05 * max(reached, default=1000))
    axes.set_ylim(FLOOR * 3, CEILING)
    axes.set_yscale("log")
    axes.axhline(share, color="0.6", linewidth=0.8)
    axes.set_xlabel("rounds of up to 32 variables")
    axes.set_ylabel("objective above the optimum, relative")
    job = data["job"]
    axes.set_title(
        f"Lasso, {job['rows']} x {job['columns']:,}, neighbors correlated by 0.9", fontsize=10.5
    )
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    save(figure, path)


if __name__ == "__main__":
    main("benchmarks.scheduled.plot", __doc__, draw=draw)
