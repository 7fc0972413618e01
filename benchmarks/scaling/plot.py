"""Draws images/s as parts of ideal against ranks, measured and predicted.

python -m benchmarks.scaling.plot build/scaling.json docs/pictures/scaling.png
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness.plot import main, pyplot, save
from benchmarks.scaling.report import STRONG, WEAK, Row, rate_text, rows

REACHED, COMMUNICATION, MACHINE, PREDICTED = "#2474b5", "#f2b248", "#e3e6e9", "#c0304a"


def draw(data: dict[str, Any], path: str) -> None:
    """Writes the picture: a column per model and rate of the links, a row per way of scaling."""
    table = rows(data)
    ways = [way for way in (WEAK, STRONG) if any(row["way"] == way for row in table)]
    settings = list(dict.fromkeys((row["model"], row["rate_mbit"]) for row in table))
    most = max(len(data["cases"]), 2)
    figure, panels = pyplot().subplots(
        len(ways), len(settings), sharey=True, squeeze=False, layout="constrained",
        figsize=(max(9.0, (0.5 + 0.55 * most) * len(settings)), 0.9 + 2.7 * len(ways)),
    )  # fmt: skip
    for line, way in zip(panels, ways, strict=True):
        for axes, setting in zip(line, settings, strict=True):
            _panel(axes, [r for r in table if (r["model"], r["rate_mbit"], r["way"])
                          == (*setting, way)], len(data["hosts"]) > 1, axes is line[0])  # fmt: skip
            axes.set_title(", ".join(filter(None, [setting[0], rate_text(setting[1])])),
                           fontsize=10, loc="left")  # fmt: skip
        line[0].set_ylabel(f"{way} scaling\nimages/s, % of ideal")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, ncols=2, loc="outside upper center", fontsize=8.5)
    save(figure, path)


def _panel(axes: Any, table: list[Row], has_hosts: bool, is_first: bool) -> None:
    """Draws the bars of one model, one rate and one way of scaling."""
    places = range(len(table))
    reached = [100 * row["of_ideal"] for row in table]
    plain = [max(part, 100 * row["plain"] / row["ideal"])
             for part, row in zip(reached, table, strict=True)]  # fmt: skip
    spread = [[100 * (row["rate"] - row["rate_min"]) / row["ideal"] for row in table],
              [100 * (row["rate_max"] - row["rate"]) / row["ideal"] for row in table]]  # fmt: skip
    axes.bar(places, reached, 0.72, color=REACHED, label="ringar, with least and greatest")
    axes.bar(places, [p - r for p, r in zip(plain, reached, strict=True)], 0.72, bottom=reached,
             color=COMMUNICATION, label="lost to the exchange of gradients")  # fmt: skip
    axes.bar(places, [max(0.0, 100 - p) for p in plain], 0.72, bottom=plain, color=MACHINE,
             label="lost without an exchange, too")  # fmt: skip
    axes.errorbar(places, reached, spread, fmt="none", ecolor="black", elinewidth=0.9, capsize=2.5)
    predicted = [(place, 100 * row["predicted"] / row["ideal"])
                 for place, row in zip(places, table, strict=True) if row["predicted"]]  # fmt: skip
    if predicted:
        axes.plot(*zip(*predicted, strict=True), "--", color=PREDICTED, marker="D", markersize=5,
                  markeredgecolor="white", linewidth=1.3,
                  label="predicted: one rank's step, and the cost model's exchange")  # fmt: skip
    names = ["ranks", *(["hosts"] if has_hosts else []), "images/s"]
    ticks = [[row["ranks"], *([row["hosts"]] if has_hosts else []), f"{row['rate']:,.0f}"]
             for row in table]  # fmt: skip
    axes.set_xticks(places, ["\n".join(map(str, lines)) for lines in ticks], fontsize=8)
    if is_first:
        axes.annotate("\n".join(names), (0, 0), (-8, -7), xycoords="axes fraction",
                      textcoords="offset points", ha="right", va="top", fontsize=8)  # fmt: skip
    axes.set_ylim(0, 112)
    axes.axhline(100, color="black", linewidth=0.8, linestyle=":")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main("benchmarks.scaling.plot", __doc__, draw=draw)
