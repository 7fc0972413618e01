"""The picture of a collective: time against size, a line per peer."""

from __future__ import annotations

from typing import Any

from benchmarks.harness.plot import pyplot, save
from benchmarks.harness.report import size_text, time_text

COLORS = {"ringar_engine": "#0b3c8c", "ringar_op": "#2f8fd8", "ringar_group": "#2f8fd8",
          "ringar_in_place": "#7db8e8", "openmpi": "#d1495b", "mpich": "#e8963a",
          "intelmpi": "#3f9c93", "gloo": "#6a9f3e", "horovod": "#7a5230",
          "tensorflow_collectives": "#8a5fa8"}  # fmt: skip
"""Of peers: ringar's are blues of different brightness, which differ in print, too."""
MARKERS = {"ringar_engine": "o", "ringar_op": "s", "ringar_group": "D", "ringar_in_place": "p",
           "openmpi": "^", "mpich": "v", "intelmpi": "<", "gloo": "P",
           "tensorflow_collectives": "X", "horovod": "*"}  # fmt: skip


def _style(peer: str) -> dict[str, Any]:
    """Returns a line's style: ringar's thick, bounds black and dashed, the others thin."""
    bound = {"memcpy": "--", "empty_op": ":"}
    if peer in bound:
        return {"color": "black", "linestyle": bound[peer], "linewidth": 1.3}
    is_ringar = peer.startswith("ringar")
    return {"color": COLORS.get(peer), "marker": MARKERS.get(peer, "."), "markersize": 5,
            "linestyle": "-", "linewidth": 2.4 if is_ringar else 1.3}  # fmt: skip


def plot(path: str, rows: list[dict[str, Any]], ranks: int) -> None:
    """Draws time against size for each peer, with the spread of the rounds, to `path`.png."""
    if not rows:
        return
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure, axes = pyplot().subplots(figsize=(8.4, 5.2))
    for peer in dict.fromkeys(row["peer"] for row in rows):
        points = [row for row in rows if row["peer"] == peer]
        sizes = [row["bytes"] for row in points]
        style = _style(peer)
        axes.plot(sizes, [row["seconds"] for row in points], label=points[0]["title"], **style)
        axes.fill_between(sizes, [row["min"] for row in points], [row["max"] for row in points],
                          color=style["color"], alpha=0.15, linewidth=0)  # fmt: skip
    sizes = sorted({row["bytes"] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [size_text(size) for size in sizes], rotation=45, ha="right")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: time_text(seconds)))
    collective = rows[0]["collective"]
    axes.set_xlabel("size")
    axes.set_ylabel(f"time of one {collective}")
    axes.set_title(f"{collective} of float32, {ranks} ranks on one machine: median, min to max")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    save(figure, path)
