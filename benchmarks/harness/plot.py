"""Pictures: matplotlib without a screen, and the command that draws measurements."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def pyplot() -> Any:
    """Imports `matplotlib.pyplot`, which then draws to files only."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, path: str | Path) -> None:
    """Writes a figure to `path`.png and closes it."""
    target = Path(path).with_suffix(".png")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=130)
    pyplot().close(figure)


def main(program: str, about: str | None, **draw: Callable[[dict[str, Any], str], None]) -> None:
    """Draws the picture of measurements: `python -m PROGRAM DATA.json PICTURE.png`.

    Args:
        program: the module's name.
        about: its docstring.
        draw: functions that draw measurements to a path. The first is the default, each other one
            an option of its name.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", help="what the benchmark has written")
    parser.add_argument("picture")
    first, *rest = draw
    parser.set_defaults(draw=draw[first])
    for name in rest:
        parser.add_argument(f"--{name}", dest="draw", action="store_const", const=draw[name])
    options = parser.parse_args()
    options.draw(json.loads(Path(options.data).read_text()), options.picture)
