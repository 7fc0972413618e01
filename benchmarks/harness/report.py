"""Tables, JSON and pictures of measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def table(headers: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table, which reads well in a terminal, too."""
    from tabulate import tabulate

    return str(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True))


def size_text(size: int) -> str:
    """4 B, 64 KiB, 16 MiB."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} B"


def time_text(seconds: float) -> str:
    """Three digits, in us, ms or s."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def collective_table(rows: list[dict[str, Any]]) -> str:
    """The columns of nccl-tests, with the peer and the spread of the rounds."""
    headers = ["size", "count", "type", "redop", "root", "peer", "time", "min", "max",
               "algbw GB/s", "busbw GB/s", "#wrong"]  # fmt: skip
    return table(
        headers,
        [
            [size_text(row["bytes"])]
            + [row[key] for key in ("elements", "type", "redop", "root", "title")]
            + [time_text(row[key]) for key in ("seconds", "min", "max")]
            + [f"{row['algbw']:.3g}", f"{row['busbw']:.3g}", row["wrong"]]
            for row in rows
        ],
    )


def missing_lines(missing: dict[str, str]) -> str:
    """A line for each that has no figures, with the reason."""
    return "".join(f"{what}: not measured ({why})\n" for what, why in missing.items())


def write_json(path: str, data: dict[str, Any]) -> None:
    """Writes ``path``.json."""
    target = Path(path).with_suffix(".json")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(data, indent=1) + "\n")


def _figure(**options: Any) -> tuple[Any, Any, Any]:
    """Matplotlib without a screen: (pyplot, figure, axes)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt, *plt.subplots(**options)


def _save(figure: Any, path: str) -> None:
    figure.tight_layout()
    figure.savefig(Path(path).with_suffix(".png"), dpi=130)


COLORS = {"ringar_engine": "#0b3c8c", "ringar_op": "#2f8fd8", "ringar_group": "#2f8fd8",
          "openmpi": "#d1495b", "mpich": "#e8963a", "gloo": "#6a9f3e",
          "tensorflow_collectives": "#8a5fa8", "horovod": "#7a5230"}  # fmt: skip
"""Of peers: ours blue, in different brightness, which also tells lines apart in print."""
MARKERS = {"ringar_engine": "o", "ringar_op": "s", "ringar_group": "D", "openmpi": "^",
           "mpich": "v", "gloo": "P", "tensorflow_collectives": "X", "horovod": "*"}  # fmt: skip


def _style(peer: str) -> dict[str, Any]:
    """Ours are thick and solid, bounds black and dashed without markers, the others thin."""
    bound = {"memcpy": "--", "empty_op": ":"}
    if peer in bound:
        return {"color": "black", "linestyle": bound[peer], "linewidth": 1.3}
    ours = peer.startswith("ringar")
    return {"color": COLORS.get(peer), "marker": MARKERS.get(peer, "."), "markersize": 5,
            "linestyle": "-", "linewidth": 2.4 if ours else 1.3}  # fmt: skip


def plot_collective(path: str, rows: list[dict[str, Any]], ranks: int) -> None:
    """Draws time against size for each peer, with the spread of the rounds, to ``path``.png."""
    if not rows:
        return
    from matplotlib.ticker import FuncFormatter, NullFormatter

    plt, figure, axes = _figure(figsize=(8.4, 5.2))
    for peer in dict.fromkeys(row["peer"] for row in rows):
        mine = [row for row in rows if row["peer"] == peer]
        sizes = [row["bytes"] for row in mine]
        style = _style(peer)
        axes.plot(sizes, [row["seconds"] for row in mine], label=mine[0]["title"], **style)
        axes.fill_between(sizes, [row["min"] for row in mine], [row["max"] for row in mine],
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
    _save(figure, path)
    plt.close(figure)


def plot_scaling(path: str, rows: list[dict[str, Any]]) -> None:
    """Draws images/s against ranks, a panel per model, to ``path``.png.

    Bars are what was measured, with their part of ideal; lines ideal and, dashed, predicted.
    """
    models = list(dict.fromkeys(row["model"] for row in rows))
    plt, figure, panels = _figure(ncols=len(models), figsize=(3.6 * len(models), 4.2),
                                  squeeze=False)  # fmt: skip
    for axes, model in zip(panels[0], models, strict=True):
        _scaling_panel(axes, [row for row in rows if row["model"] == model])
        axes.set_title(model)
    panels[0][0].set_ylabel("images per second (median)")
    handles, labels = panels[0][0].get_legend_handles_labels()
    columns = 4 if len(models) > 2 else 2
    figure.tight_layout(rect=(0, 0, 1, 0.8 + 0.03 * columns))
    figure.legend(handles, labels, frameon=False, ncols=columns, loc="upper center", fontsize=9)
    figure.savefig(Path(path).with_suffix(".png"), dpi=130)
    plt.close(figure)


def _scaling_panel(axes: Any, rows: list[dict[str, Any]]) -> None:
    """One model."""
    ranks = sorted({row["ranks"] for row in rows})
    width = 0.36
    for offset, with_ringar, color, label in (
        (-width / 2, False, "0.75", "plain processes side by side"),
        (width / 2, True, "#2f8fd8", "ringar"),
    ):
        bars = {row["ranks"]: row for row in rows if row["ringar"] is with_ringar}
        places = {n: ranks.index(n) + offset for n in ranks if n in bars}
        axes.bar(list(places.values()), [bars[n]["rate"] for n in places], width,
                 color=color, label=label)  # fmt: skip
        for n, place in places.items():
            axes.annotate(f"{bars[n]['efficiency']:.0%}", (place, bars[n]["rate"]), (0, -3),
                          textcoords="offset points", ha="center", va="top", fontsize=8,
                          color="white" if with_ringar else "0.2")  # fmt: skip
    lines = {n: next(row for row in rows if row["ranks"] == n) for n in ranks}
    axes.plot(range(len(ranks)), [lines[n]["ideal"] for n in ranks], color="black", linewidth=1,
              linestyle=":", label="ideal")  # fmt: skip
    if all("predicted" in row for row in rows):
        axes.plot(range(len(ranks)), [lines[n]["predicted"] for n in ranks], color="#d1495b",
                  linewidth=1.8, linestyle="--", marker="o", markersize=4,
                  label="predicted: one rank's step + exchange")  # fmt: skip
    axes.set_xticks(range(len(ranks)), [str(n) for n in ranks])
    axes.set_xlabel("ranks")
    axes.set_ylim(0, 1.06 * max(max(row["ideal"], row["rate"]) for row in rows))
    axes.grid(True, axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
