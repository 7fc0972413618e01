"""The tables of `benchmarks.scan`, and its targets."""

from __future__ import annotations

import math
from collections.abc import Mapping

from benchmarks.harness import report
from benchmarks.harness.targets import Target
from benchmarks.scan import counts as scan_counts
from benchmarks.scan import crossover as scan_crossover
from benchmarks.scan.cells import CENTER, ONE, SMALL, UNITS, WHATS, Cell, Outcome, Place, Times
from benchmarks.scan.worker import OWN, WAYS

KERAS = ("keras", "keras_jit")
AUTOMATIC = "auto"  # in a tf.function, against both of Keras' ways
TABLE_UNITS = (1, 4, 8, 20, 64, 256)


def on_grid(cells: Mapping[Cell, Times]) -> dict[Cell, Times]:
    """Returns the cells of the paper's grid."""
    return {cell: times for cell, times in cells.items() if cell.units == UNITS}


def known_ways(cells: Mapping[Cell, Times]) -> list[str]:
    """Returns the ways that were measured in all cells."""
    return [way for way in WAYS if all(way in times.rounds for times in cells.values())]


def spread(seconds: list[float], middle: float) -> str:
    """Returns milliseconds: the median of the rounds, the least and the greatest."""
    least, most = min(seconds), max(seconds)
    return f"{1e3 * middle:.3g} [{1e3 * least:.3g}, {1e3 * most:.3g}]"


def times_text(cells: Mapping[Cell, Times], phase: str) -> str:
    """Returns a table with a row per cell and a column per way."""
    ways = known_ways(cells)
    headers = [f"{phase}, ms", *(WAYS[way].title for way in ways)]
    rows = []
    for cell, times in cells.items():
        row = [
            str(cell),
            *(spread(times.of(way, phase), times.seconds(way, phase)) for way in ways),
        ]
        if phase == "backward":
            making = times.jacobians
            row.append(spread(making, sorted(making)[len(making) // 2]) if making else "-")
        rows.append(row)
    return report.table(headers + (["Jacobians"] if phase == "backward" else []), rows)


def large_text(cells: Mapping[Cell, Times]) -> str:
    """Returns the table of many units: whole steps."""
    return times_text({cell: times for cell, times in cells.items() if cell.units > UNITS}, "step")


def small_text(cells: Mapping[Cell, Times]) -> str:
    """Returns the table of few units: the scan itself against Keras."""
    small = {cell: times for cell, times in cells.items() if cell.units in SMALL}
    ways = known_ways(small)
    headers = ["backward, ms", *(WAYS[way].title for way in ways), "scan faster than Keras"]
    rows = [
        [str(cell), *(spread(times.of(way, "backward"), times.seconds(way, "backward"))
                      for way in ways),
         f"{times.faster('scan', 'keras', 'backward'):.3g}x"]
        for cell, times in small.items()
    ]  # fmt: skip
    return report.table(headers, rows)


def predictions(
    cells: Mapping[Cell, Times],
) -> tuple[scan_counts.Rates, dict[Cell, tuple[float, float]]]:
    """Returns fitted rates, and the predicted and measured seconds of the scan by cell."""
    grid = on_grid(cells)
    amounts = [scan_counts.operations(c.steps, c.batch, c.units) for c in grid]
    seconds = [times.seconds("scan", "backward") for times in grid.values()]
    rates = scan_counts.fit(amounts, seconds)
    pairs = zip(map(rates.seconds, amounts), seconds, strict=True)
    return rates, dict(zip(grid, pairs, strict=True))


def prediction_text(cells: Mapping[Cell, Times]) -> str:
    """Returns the table of the scan's operations beside its time."""
    rates, pairs = predictions(cells)
    rows = []
    for cell, (predicted, seconds) in pairs.items():
        counts = scan_counts.count(cell.steps)
        rows.append([
            str(cell), counts.products, counts.applies, counts.jacobians,
            f"{scan_counts.operations(cell.steps, cell.batch, cell.units):.3g}",
            report.time_text(predicted), report.time_text(seconds), f"{seconds / predicted:.2f}",
        ])  # fmt: skip
    headers = ["scan", "products", "vectors", "Jacobians", "operations", "predicted", "measured",
               "measured / predicted"]  # fmt: skip
    speed = 1e-9 / rates.operation if rates.operation else math.inf
    head = (
        f"Predicted: {report.time_text(rates.call)} per call and {speed:.3g}e9 operations/s, "
        "fitted to these rows; counts are those of an example.\n\n"
    )
    return head + report.table(headers, rows)


def crossover_text(costs: Mapping[int, tuple[float, float]]) -> str:
    """Returns the workers that a scan needs to beat the chain, by arithmetic and as measured."""
    lengths = scan_crossover.LENGTHS
    cost_models = {"by operations": scan_crossover.ARITHMETIC}
    if costs:
        cost_models["with the times of this machine"] = scan_crossover.measured(costs)
    tables = []
    for title, of in cost_models.items():
        rows = []
        for units in TABLE_UNITS:
            workers = [scan_crossover.workers_needed(units, n, of) for n in lengths]
            texts = ["-" if p is None else str(p) for p in workers]
            rows.append([f"H = {units}", f"{of.ratio(units):.3g}", *texts])
        headers = [f"workers needed {title}", "R", *(f"n = {n}" for n in lengths)]
        tables.append(report.table(headers, rows))
    return "\n\n".join(tables)


def text(outcome: Outcome, costs: Mapping[int, tuple[float, float]]) -> str:
    """Returns all tables; times are medians of the rounds, least and greatest in brackets."""
    parts = []
    for place, cells in outcome.items():
        parts.append(f"## {place.title}")
        parts += [times_text(on_grid(cells), phase) for phase in WHATS]
    cells_of_one = outcome.get(ONE, {})
    if any(cell.units in SMALL for cell in cells_of_one):
        parts += ["## Few units", small_text(cells_of_one)]
    if any(cell.units > UNITS for cell in cells_of_one):
        parts += ["## Many units", large_text(cells_of_one)]
    if on_grid(cells_of_one) and "scan" in known_ways(on_grid(cells_of_one)):
        parts += ["## The scan and its operations", prediction_text(cells_of_one)]
    if costs:
        parts += ["## When a scan pays", crossover_text(costs)]
    return "\n\n".join(parts) + "\n"


def targets(outcome: Outcome) -> list[Target]:
    """Returns all targets, those without measurements included; most are of one thread."""
    cells = outcome.get(ONE, {})
    center = cells.get(CENTER)

    def best(phase: str, keras: str) -> Target:
        bounds = {"step": (8, 1.5), "backward": (8, 2)}[phase]
        fastest = center.best(OWN, phase) if center else "auto"
        figure = center.faster(fastest, keras, phase) if center else math.nan
        title = f"{phase}, {CENTER}, by {WAYS[fastest].title}, over {WAYS[keras].title}"
        return Target(title, bounds[KERAS.index(keras)], "x", [figure])

    pairs = predictions(cells)[1].values() if center else []
    misses = [max(measured / predicted, predicted / measured) for predicted, measured in pairs]
    small = {cell: times.faster("scan", "keras", "backward") for cell, times in cells.items()
             if cell.units in SMALL}  # fmt: skip
    weakest = min(small, key=lambda cell: small[cell], default=CENTER)
    automatic = [
        least_automatic(place, cells) for place, cells in outcome.items() if CENTER in cells
    ]
    return [
        *(best(phase, keras) for phase in ("step", "backward") for keras in KERAS),
        *(automatic or [Target("automatic choice", 1, "x", [math.nan])]),
        Target("scan's time and its operations, greatest ratio of the grid", 2, "x",
             [max(misses, default=math.nan)], at_most=True),
        Target(f"backward by the scan itself, H = {', '.join(map(str, SMALL))}, over Keras' "
             f"tf.function (least, at {weakest})", 1, "x", [small.get(weakest, math.nan)]),
    ]  # fmt: skip


def lstm_targets(outcome: Outcome) -> list[Target]:
    """Returns the targets of an LSTM; the first two are of one thread."""
    cells = outcome.get(ONE, {})
    center = cells[CENTER].faster(AUTOMATIC, KERAS[0], "step") if CENTER in cells else math.nan
    large = {cell: times.faster(AUTOMATIC, KERAS[0], "step") for cell, times in cells.items()
             if cell.units > UNITS}  # fmt: skip
    weakest = min(large, key=lambda cell: large[cell], default=None)
    automatic = [
        least_automatic(place, cells) for place, cells in outcome.items() if CENTER in cells
    ]
    return [
        Target(f"step, {CENTER}, over Keras' tf.function", 3, "x", [center]),
        Target(f"step, many units, over Keras' tf.function (least, at {weakest})", 1, "x",
               [large[weakest] if weakest else math.nan]),
        *(automatic or [Target("automatic choice", 1, "x", [math.nan])]),
    ]  # fmt: skip


def least_automatic(place: Place, cells: Mapping[Cell, Times]) -> Target:
    """Returns the target of the automatic choice, where it gains least over Keras."""
    figures, wheres = [], []
    for keras in KERAS:
        ratios = {
            cell: times.faster(AUTOMATIC, keras, "step") for cell, times in on_grid(cells).items()
        }
        where = min(ratios, key=lambda cell: ratios[cell])
        figures.append(ratios[where])
        wheres.append(str(where))
    title = f"step by the automatic choice, {place.title}, over Keras' tf.function (least, at "
    title += f"{wheres[0]}) and jit_compile (at {wheres[1]})"
    return Target(title, 1, "x", figures)
