"""The pictures of threads, and of one step with its buckets."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.harness.plot import pyplot, save
from benchmarks.harness.report import time_text
from benchmarks.training.overlap_trace import (
    PHASES,
    Op,
    Span,
    Transfer,
    beside,
    bytes_text,
    phase_of,
    union,
)

KINDS = ("queued", "waiting", "reducing", "copying")

STEP_COLORS = {
    "forward": "#8fa3b8", "backward": "#51606e", "optimizer": "#b39ac6", "queued": "#bdbdbd",
    "waiting": "#f2b248", "reducing": "#2474b5", "copying": "#58a868", "running": "#bcd6ec",
}  # fmt: skip


def plot_threads(path: str, table: list[dict[str, Any]], title: str) -> None:
    """Draws images/s against intra-op threads to `path`.png: a line per inter-op and binding."""
    numbers = [*sorted({row["intra"] for row in table} - {0}), 0]
    bindings = sorted({row["bind_to"] for row in table})
    figure, panels = pyplot().subplots(
        1, len(bindings), sharey=True, squeeze=False, figsize=(1 + 4.2 * len(bindings), 4.2)
    )
    for axes, binding in zip(panels[0], bindings, strict=True):
        inters = sorted({row["inter"] for row in table})
        for place, inter in enumerate(inters):
            points = sorted(
                (r for r in table if (r["inter"], r["bind_to"]) == (inter, binding)),
                key=lambda row: numbers.index(row["intra"]),
            )
            # Side by side, so that whiskers do not hide each other.
            x = [numbers.index(r["intra"]) + 0.06 * (place - len(inters) / 2) for r in points]
            rate = [r["rate"] for r in points]
            whiskers = [[r["rate"] * (1 - r["seconds"] / r["max"]) for r in points],
                        [r["rate"] * (r["seconds"] / r["min"] - 1) for r in points]]  # fmt: skip
            name = f"{inter} inter-op" if inter else "0 and 0: TensorFlow's choice"
            color = f"C{place}" if inter else "#555555"
            axes.errorbar(x, rate, whiskers, fmt="-o" if inter else "D", color=color, label=name,
                          capsize=3)  # fmt: skip
        axes.set_xticks(range(len(numbers)), [str(n) if n else "0" for n in numbers])
        axes.set_xlim(-0.5, len(numbers) - 0.5)
        axes.set_title(f"--bind-to {binding}", fontsize=10)
        axes.set_xlabel("intra-op threads per rank")
        axes.grid(True, axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("images per second of all ranks")
    panels[0][0].set_ylim(bottom=0)
    panels[0][0].legend(frameon=False, fontsize=8, loc="lower left")
    figure.suptitle(title, fontsize=11)
    figure.tight_layout()
    save(figure, path)


def plot_step(path: str, step: Span, ops: list[Op], exchanges: list[Transfer], title: str) -> None:
    """Draws one step to `path`.png: a row per phase, then one per bucket."""
    plt = pyplot()
    inside = [exchange for exchange in exchanges if step[0] <= exchange.begin < step[1]]
    by_phase = {
        phase: [op[1:] for op in ops if phase_of(op[0]) == phase and step[0] <= op[1] < step[1]]
        for phase in PHASES
    }
    labels = [*PHASES, *(re.sub(r"bucket_(\d+):(.*)", r"bucket \1  (\2)", b.name) for b in inside)]
    figure, axes = plt.subplots(figsize=(10, 1.5 + 0.36 * len(labels)))

    def bars(row: int, spans: list[Span], color: str) -> None:
        axes.broken_barh([((b - step[0]) / 1e3, (e - b) / 1e3) for b, e in spans],
                         (row - 0.36, 0.72), facecolors=STEP_COLORS[color], zorder=3)  # fmt: skip

    for row, phase in enumerate(PHASES):
        bars(row, by_phase[phase], phase)
    for begin, end in union(by_phase["backward"]):
        axes.axvspan((begin - step[0]) / 1e3, (end - step[0]) / 1e3, color="#eef0f2", lw=0)
    for row, exchange in enumerate(inside, len(PHASES)):
        bars(row, [(exchange.begin, exchange.end)], "running")
        for kind in KINDS:
            bars(row, exchange.spans.get(kind, []), kind)
        _caption(axes, row, exchange, step, by_phase["backward"])
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(0, (step[1] - step[0]) / 1e3)
    axes.set_xlabel("ms since the step's begin; shaded: an operation of the backward pass runs")
    axes.set_title(title, fontsize=10, loc="left", pad=24)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    handles = [plt.Rectangle((0, 0), 1, 1, color=STEP_COLORS[kind]) for kind in (*KINDS, "running")]
    names = [*KINDS, "running (details beyond the first 256)"]
    axes.legend(handles, names, ncols=5, frameon=False, fontsize=8, loc="lower left",
                bbox_to_anchor=(-0.01, 0.99), borderaxespad=0)  # fmt: skip
    figure.tight_layout()
    save(figure, path)


def _caption(axes: Any, row: int, exchange: Transfer, step: Span, backward: list[Span]) -> None:
    """Writes size, time and part beside the backward pass on the free side of the bar."""
    length = exchange.end - exchange.begin
    part = beside((exchange.begin, exchange.end), backward) / length
    text = f"{bytes_text(exchange.bytes)}, {time_text(length / 1e6)}, {part:.0%} beside backward"
    is_late = exchange.end - step[0] > 0.6 * (step[1] - step[0])
    at = (exchange.submitted if is_late else exchange.end) - step[0]
    axes.annotate(text, (at / 1e3, row), xytext=(-6 if is_late else 6, 0), fontsize=8, va="center",
                  textcoords="offset points", zorder=4,
                  ha="right" if is_late else "left")  # fmt: skip
