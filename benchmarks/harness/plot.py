"""Pictures without a screen."""

from __future__ import annotations

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
