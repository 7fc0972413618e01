"""The picture of `benchmarks.simulate`: allreduce times, efficiency, and published figures."""

from __future__ import annotations

from typing import Any

from benchmarks.harness import report
from benchmarks.harness.plot import pyplot, save
from benchmarks.simulate import published
from benchmarks.simulate.networks import TITLES

ALGORITHM_COLORS = {
    "ring": "#2f8fd8",
    "recursive_doubling": "#e8963a",
    "halving_doubling": "#3aa655",
    "hierarchical": "#0b3c8c",
}
MODEL_COLORS = ("#0b3c8c", "#d1495b", "#6a9f3e", "#8a5fa8", "#e8963a", "#7a5230")
STYLES = {"hierarchical": "-", "ring": "--", "recursive_doubling": ":", "halving_doubling": "-."}


def _title(model: str) -> str:
    """Returns a model's name as the papers spell it."""
    return TITLES.get(model, model)


def _allreduce(axes: Any, table: list[dict[str, Any]]) -> None:
    """Draws the time of one model's gradients against ranks, a line per algorithm."""
    from matplotlib.ticker import FuncFormatter

    model = max(table, key=lambda row: row["bytes"])["model"]
    for name, color in ALGORITHM_COLORS.items():
        points = [r for r in table if r["model"] == model and r["algorithm"] == name]
        points = [row for row in points if row["ranks"] > 1]
        if points:
            axes.plot([r["ranks"] for r in points], [r["allreduce"] for r in points], STYLES[name],
                      color=color, linewidth=2, label=name.replace("_", " "))  # fmt: skip
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: report.time_text(seconds)))
    axes.set_title(f"Predicted allreduce of the gradients of {_title(model)} "
                   f"({next(r['bytes'] for r in table if r['model'] == model) / 1e6:.0f} MB)",
                   loc="left", fontsize=10)  # fmt: skip
    axes.legend(frameon=False, fontsize=8)


def _efficiency(axes: Any, table: list[dict[str, Any]]) -> None:
    """Draws efficiency against ranks, a color per model, for the algorithms of long messages."""
    models = list(dict.fromkeys(row["model"] for row in table))
    names = [name for name in STYLES if any(row["algorithm"] == name for row in table)][:2]
    for color, model in zip(MODEL_COLORS, models, strict=False):
        for name in names:
            points = [r for r in table if r["model"] == model and r["algorithm"] == name]
            axes.plot([r["ranks"] for r in points], [100 * r["efficiency"] for r in points],
                      STYLES[name], color=color, linewidth=2 if name == names[0] else 1.2,
                      label=_title(model) if name == names[0] else None)  # fmt: skip
    for name in names:
        axes.plot([], [], STYLES[name], color="0.4", label=name.replace("_", " "))
    axes.set_ylim(0, 105)
    axes.set_title(
        "Predicted efficiency of training, gradients in buckets", loc="left", fontsize=10
    )
    axes.legend(frameon=False, fontsize=8, loc="lower left")


def _published(axes: Any, comparisons: list[published.Comparison]) -> None:
    """Draws published efficiencies as points on the predicted lines."""
    ranks = [1, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    for color, model in zip(MODEL_COLORS, published.ONE_GPU, strict=False):
        line = [published.predict(model, n) for n in ranks]
        axes.plot(ranks, [100 * prediction.efficiency for prediction in line], "--", color=color)
        axes.plot([], [], color=color, label=_title(model))
        points = [comparison for comparison in comparisons if comparison.model == model]
        axes.plot([p.gpus for p in points], [100 * p.published for p in points], "o",
                  color=color, markersize=6)  # fmt: skip
    axes.plot([], [], "o", color="0.4", label="published")
    axes.plot([], [], "--", color="0.4", label="predicted")
    axes.set_ylim(0, 105)
    axes.set_title("Horovod on P100 GPUs, a ring, buckets of 64 MiB", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="lower left")


def plot(path: str, table: list[dict[str, Any]], comparisons: list[published.Comparison]) -> None:
    """Draws all three to `path`.png."""
    figure, panels = pyplot().subplots(ncols=3, figsize=(15, 4.4))
    _allreduce(panels[0], table)
    _efficiency(panels[1], table)
    _published(panels[2], comparisons)
    for axes in panels:
        axes.set_xscale("log", base=2)
        ticks = [1, 4, 16, 64, 256, 1024, 4096, 10000]
        axes.set_xticks(ticks, [str(tick) for tick in ticks], rotation=30)
        axes.minorticks_off()
        axes.set_xlabel("ranks")
        axes.grid(True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("time")
    panels[1].set_ylabel("% of ranks that do not communicate")
    panels[0].set_xlim(3, 12000)
    panels[2].set_xlim(0.9, 1400)
    figure.tight_layout()
    save(figure, path)
