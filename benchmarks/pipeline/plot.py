"""Draws what the modules do while they train: the picture of docs/pipeline.md.

    python -m benchmarks.pipeline.plot build/pipeline.json docs/pictures/pipeline.png

A panel per schedule, a row per module, over the same span of time. Boxes are forward and
backward passes with the number of their batch; one batch is followed in another color.
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness import report
from benchmarks.harness.plot import main, pyplot, save

STEPS = 4.5
"""Of the slowest schedule."""
COLORS = {"forward": "#a9cbe8", "backward": "#2474b5"}
FOLLOWED = {"forward": "#f5c98f", "backward": "#d97b1f"}
TEXT = {"forward": "0.15", "backward": "white"}
NUMBERED, SEEN = 0.014, 0.0015
"""From which part of the picture's width on a box has a number, and a wait is drawn."""

Events = list[dict[str, Any]]


def begin_of_view(ranks: list[Events], span: float) -> float:
    """Returns the begin of a forward pass in the first module that puts `span` in the middle."""
    last = min(max(event["end"] for event in events) for events in ranks)
    passes: dict[int, float] = {}
    for event in ranks[0]:
        if event["what"] == "forward":
            passes.setdefault(event["batch"], event["begin"])
    middle = max(0.0, (last - span) / 2)
    moments = sorted(passes.values())
    return next((begin for begin in moments if begin >= middle), moments[0])


def inside(ranks: list[Events], begin: float, end: float) -> list[Events]:
    """Returns the visible events, in seconds from 0 on; batches are counted from the oldest."""
    views = [[event for event in events if event["begin"] < end and event["end"] > begin]
             for events in ranks]  # fmt: skip
    oldest = min(event["batch"] for events in views for event in events)

    def moved(event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "batch": event["batch"] - oldest, "begin": event["begin"] - begin,
                "end": event["end"] - begin}  # fmt: skip

    return [[moved(event) for event in events] for events in views]


def followed(ranks: list[Events]) -> int:
    """Returns the second batch that the first module begins, all of whose passes are visible."""
    batches = [event["batch"] for event in ranks[0]
               if event["what"] == "forward" and event["begin"] >= -1e-9]  # fmt: skip
    numbers = sorted(set(batches))
    return numbers[min(1, len(numbers) - 1)] if numbers else -1


def _boxes(axes: Any, row: int, events: Events, span: float, followed_batch: int) -> None:
    """Draws the row of one module."""
    from matplotlib.patches import Rectangle

    for event in events:
        begin, end = max(0.0, event["begin"]), min(span, event["end"])
        kind, width = event["what"], end - begin
        if kind not in COLORS:
            if width > SEEN * span:
                axes.add_patch(Rectangle(
                    (1e3 * begin, row - 0.3), 1e3 * width, 0.6, facecolor="white",
                    edgecolor="0.75", linewidth=0, hatch="/////", zorder=2,
                ))  # fmt: skip
            continue
        colors = FOLLOWED if event["batch"] == followed_batch else COLORS
        axes.add_patch(Rectangle(
            (1e3 * begin, row - 0.38), 1e3 * width, 0.76, facecolor=colors[kind],
            edgecolor="white", linewidth=0.8, zorder=3,
        ))  # fmt: skip
        if width > NUMBERED * span:
            axes.text(1e3 * (begin + width / 2), row, str(event["batch"]), ha="center",
                      va="center", fontsize=9, color=TEXT[kind], zorder=4)  # fmt: skip


def _panel(axes: Any, row: dict[str, Any], span: float) -> None:
    """Draws the panel of one schedule."""
    ranks = row["timeline"]
    begin = begin_of_view(ranks, span)
    views = inside(ranks, begin, begin + span)
    batch = followed(views)
    for module, events in enumerate(views):
        _boxes(axes, module, events, span, batch)
    idle = ", ".join(f"{share:.0%}" for share in row["wait"])
    axes.set_title(row["plan"], loc="left", fontsize=11, fontweight="bold")
    axes.set_title(
        f"{row['times']:.2f}x one thread, a step in {report.time_text(row['seconds'])}, "
        f"modules idle {idle} of the time", loc="right", fontsize=9.5,
    )  # fmt: skip
    axes.set_yticks(range(len(ranks)), [f"module {module}" for module in range(len(ranks))])
    axes.set_ylim(len(ranks) - 0.45, -0.55)
    axes.set_xlim(0, 1e3 * span)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def draw(data: dict[str, Any], path: str) -> None:
    """Writes the picture of what `benchmarks.pipeline` has measured.

    Raises:
        ValueError: nothing was measured that it could show.
    """
    from matplotlib.patches import Rectangle

    table = [row for row in data["rows"] if row.get("timeline")]
    if not table:
        raise ValueError("expected measurements of modules; received none of them")
    span = STEPS * max(row["seconds"] for row in table)
    height = 0.75 + 0.42 * len(table[0]["timeline"])
    figure, panels = pyplot().subplots(len(table), 1, sharex=True, squeeze=False,
                                  figsize=(10, 1.0 + height * len(table)))  # fmt: skip
    for axes, row in zip(panels[:, 0], table, strict=True):
        _panel(axes, row, span)
    panels[-1][0].set_xlabel("ms")
    boxes = [*(Rectangle((0, 0), 1, 1, color=color) for color in COLORS.values()),
             *(Rectangle((0, 0), 1, 1, color=color) for color in FOLLOWED.values()),
             Rectangle((0, 0), 1, 1, facecolor="white", edgecolor="0.75", linewidth=0,
                       hatch="/////")]  # fmt: skip
    names = ["forward", "backward, with the batch's number", "one batch, forward", "and backward",
             "waits"]  # fmt: skip
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.3 / figure.get_figheight()))
    figure.legend(boxes, names, ncols=5, frameon=False, fontsize=9, loc="upper left")
    save(figure, path)


if __name__ == "__main__":
    main("benchmarks.pipeline.plot", __doc__, draw=draw)
