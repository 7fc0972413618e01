"""Draws the fastest way in each cell, and the workers that a scan needs: pictures of docs/scan.md.

    python -m benchmarks.scan.plot build/scan.json docs/pictures/scan.png
    python -m benchmarks.scan.plot build/scan.json docs/pictures/scan_crossover.png --crossover

scan.png: a row per number of threads or ranks, a column per size. The color is the fastest way
(the first of the legend where several are within 5%), the number how many times faster the best of
ringar's ways is than Keras compiled with jit_compile; below it the same of the scan itself.

scan_crossover.png: the model of benchmarks/scan/crossover.py, up to 10,000 workers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.harness.plot import main, pyplot, save
from benchmarks.scan import crossover as scan_crossover
from benchmarks.scan.cells import PLACES, UNITS, WHATS, Cell, Outcome, Times, from_rows, is_by_steps
from benchmarks.scan.worker import OWN, WAYS

COLORS = {"keras": "#8c8c8c", "keras_jit": "#d9a441", "auto": "#7fb6e0", "auto_jit": "#1f6fb4",
          "serial": "#a9d5c4", "scan": "#d1495b", "hybrid": "#b58acb",
          "over": "#5a9e4b"}  # fmt: skip
LIGHT_TEXT = ("auto_jit", "scan")
NAMES = {"keras": "Keras, tf.function", "keras_jit": "Keras, jit_compile", "auto": "ringar, auto",
         "auto_jit": "ringar, auto, jit_compile", "serial": "ringar, serial kernel",
         "scan": "ringar, scan", "hybrid": "ringar, hybrid",
         "over": "ringar, steps cut over ranks"}  # fmt: skip
TITLES = {"forward": "forward", "backward": "backward", "step": "whole step"}
MARKED = (3, 10, 30, 100, 300)
TIE = 0.05


def times_text(ratio: float) -> str:
    """Returns a ratio as 2.1x, 21x or 210x."""
    return f"{ratio:.1f}x" if ratio < 9.95 else f"{ratio:.0f}x"


def winner(times: Times, phase: str) -> tuple[str, str]:
    """Returns the first of the ways that are nearly the fastest, and the text of its cell."""
    # All of ringar's ways go forward with the same kernel.
    equal_ways = ("serial", "scan", "hybrid") if phase == "forward" else ()
    ways = [way for way in WAYS if way in times.rounds and way not in equal_ways]
    bound = (1 + TIE) * times.seconds(times.best(ways, phase), phase)
    won = next(way for way in ways if times.seconds(way, phase) <= bound)
    fastest = times.best([way for way in ways if way in OWN], phase)
    text = times_text(times.faster(fastest, "keras_jit", phase))
    if phase == "forward" or "scan" not in times.rounds:
        return won, text
    return won, f"{text}\nscan {times_text(times.faster('scan', 'keras_jit', phase))}"


def _panel(axes: Any, outcome: Outcome, phase: str, cells: list[Cell], number: str) -> set[str]:
    """Draws one grid and returns the ways that win somewhere."""
    from matplotlib.patches import Rectangle

    won = set()
    for row, place in enumerate(outcome):
        for column, cell in enumerate(cells):
            if cell not in outcome[place]:
                continue
            way, text = winner(outcome[place][cell], phase)
            won.add(way)
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=COLORS[way],
                                     edgecolor="white", linewidth=2))  # fmt: skip
            color = "white" if way in LIGHT_TEXT else "0.1"
            first, _, second = text.partition("\n")
            axes.text(column, row - (0.14 if second else 0), first, ha="center", va="center",
                      fontsize=11, fontweight="bold", color=color)  # fmt: skip
            axes.text(column, row + 0.24, second, ha="center", va="center", fontsize=7.5,
                      color=color)  # fmt: skip
    axes.set_xlim(-0.5, len(cells) - 0.5)
    axes.set_ylim(len(outcome) - 0.5, -0.5)
    labels = [f"{getattr(cell, number):,}" for cell in cells]
    axes.set_xticks(range(len(cells)), labels)
    axes.set_yticks(range(len(outcome)), [place.title for place in outcome])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return won


def draw(data: dict[str, Any], path: str) -> None:
    """Writes the picture of the fastest ways.

    Raises:
        ValueError: nothing was measured that it could show.
    """
    from matplotlib.patches import Rectangle

    all_found = from_rows(data["cells"])
    outcome = {place: all_found[place] for place in PLACES.values() if place in all_found}
    all_cells = {cell for cells in outcome.values() for cell in cells if cell.units == UNITS}
    if not all_cells:
        raise ValueError("expected measurements of cells; received none")
    by_steps = sorted((c for c in all_cells if is_by_steps(c)), key=lambda cell: cell.steps)
    fixed = max((c.steps for c in all_cells if not is_by_steps(c)), default=by_steps[-1].steps)
    by_batch = sorted((c for c in all_cells if c.steps == fixed), key=lambda cell: cell.batch)
    figure, panels = pyplot().subplots(
        len(WHATS), 2, figsize=(14.5, 1.6 + len(WHATS) * (0.62 * len(outcome) + 0.75)),
        width_ratios=[len(by_steps), len(by_batch)],
    )  # fmt: skip
    won: set[str] = set()
    for (left, right), phase in zip(panels, WHATS, strict=True):
        won |= _panel(left, outcome, phase, by_steps, "steps")
        won |= _panel(right, outcome, phase, by_batch, "batch")
        left.set_title(TITLES[phase], loc="left", fontsize=12, fontweight="bold")
        right.set_yticks([])
    panels[-1][0].set_xlabel(f"steps, {by_steps[0].batch} examples")
    panels[-1][1].set_xlabel(f"examples, {fixed:,} steps")
    ways = [way for way in WAYS if way in won]
    boxes = [Rectangle((0, 0), 1, 1, color=COLORS[way]) for way in ways]
    inch = 1 / figure.get_figheight()
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.7 * inch), h_pad=1.2)
    figure.text(0.01, 1 - 0.12 * inch, f"The fastest way to run an RNN of {UNITS} units, and how "
                "many times faster the best of ringar is than Keras with jit_compile", va="top",
                fontsize=13)  # fmt: skip
    figure.legend(boxes, [NAMES[way] for way in ways], ncols=len(ways), frameon=False, fontsize=10,
                  loc="upper left", bbox_to_anchor=(0.005, 1 - 0.36 * inch))  # fmt: skip
    figure.text(0.995, 1 - 0.5 * inch, "Below it: the scan itself. Within 5% the first of the "
                "legend wins.", va="center", ha="right", fontsize=9, color="0.35")  # fmt: skip
    save(figure, path)


def _crossover_panel(axes: Any, costs: scan_crossover.Costs, units: np.ndarray) -> Any:
    """Draws the number of workers in colors, with lines at round numbers."""
    from matplotlib.colors import LogNorm

    lengths = np.unique(np.geomspace(10, 30_000, 160).astype(int))
    workers = scan_crossover.table(units, lengths, costs)
    axes.set_facecolor("#e6e6e6")
    colors = axes.pcolormesh(lengths, units, workers, norm=LogNorm(2, 1000), cmap="viridis_r",
                             shading="nearest", rasterized=True)  # fmt: skip
    lines = axes.contour(lengths, units, workers, levels=MARKED, colors="white", linewidths=1)
    column = len(lengths) * 7 // 8
    reached = [(lengths[column], units[np.argmax(workers[:, column] >= mark)]) for mark in MARKED
               if (workers[:, column] > mark).any()]  # fmt: skip
    axes.axhline(UNITS, color="black", linewidth=0.9, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log", base=2)
    axes.set_yticks([1, 2, 4, 8, 16, 32, 64, 128, 256],
                    ["1", "2", "4", "8", "16", "32", "64", "128", "256"])  # fmt: skip
    axes.clabel(lines, fmt="%d", fontsize=9, inline_spacing=2, manual=reached)
    axes.set_xlabel("steps of the chain")
    return colors


def draw_crossover(data: dict[str, Any], path: str) -> None:
    """Writes the picture of the model; the right half from measured times, if any."""
    panels = {"By operations: a product is H vectors": scan_crossover.ARITHMETIC}
    seconds = {int(units): (pair[0], pair[1]) for units, pair in data.get("costs", {}).items()}
    if seconds:
        panels["With the times of one core of this machine"] = scan_crossover.measured(seconds)
    units = np.geomspace(1, 256, 120)
    figure, axes = pyplot().subplots(
        1, len(panels), figsize=(2 + 5.3 * len(panels), 5), sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for panel, (title, costs) in zip(axes[0], panels.items(), strict=True):
        colors = _crossover_panel(panel, costs, units)
        panel.set_title(title, loc="left", fontsize=11)
        panel.text(10.5, 230, f"no number up to {scan_crossover.MOST:,}\nis enough", va="top",
                   fontsize=9, color="0.35")  # fmt: skip
    axes[0][0].text(28_000, UNITS * 1.06, "H = 20, as in the paper", ha="right", fontsize=8.5)
    axes[0][0].set_ylabel("H, units")
    bar = figure.colorbar(colors, ax=axes[0], label="workers needed for each chain", extend="max")
    bar.set_ticks([2, 5, 10, 20, 50, 100, 200, 500, 1000],
                  labels=["2", "5", "10", "20", "50", "100", "200", "500", "1000"])  # fmt: skip
    bar.ax.minorticks_off()
    figure.suptitle("From how many workers on a scan beats the serial chain", x=0.01, ha="left",
                    fontsize=13)  # fmt: skip
    save(figure, path)


if __name__ == "__main__":
    main("benchmarks.scan.plot", __doc__, draw=draw, crossover=draw_crossover)
