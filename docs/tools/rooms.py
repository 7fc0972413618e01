"""Draws docs/pictures/rooms.svg: the rooms of ringar, and which imports from which.

Rooms and their order are those of the contract in pyproject.toml, arrows are the imports that grimp
finds, and a room's sentence is the first of its docstring. An arrow that follows from others is
left out: a module that imports from keras/ may import from whatever lies below it.

    make rooms                              draws it
    python docs/tools/rooms.py --check   fails if it is no longer true; `make lint` asks this
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import sys
import textwrap
from dataclasses import dataclass
from html import escape
from pathlib import Path

import grimp

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PICTURE = Path(__file__).parents[1] / "pictures" / "rooms.svg"
PROJECT = Path(__file__).parents[2] / "pyproject.toml"

#: Rooms beside the column in the middle, left (-) and right of it.
COLUMNS = {"cupy": -1, "elastic": -1, "version": -1, "data": 1, "asynchronous": 1, "launchers": 2}

WIDTH, HEIGHT = 236, 84
ROW, COLUMN = 122, 262
MARGIN = 14

STYLE = """
  text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #1f2933 }
  .name { font-size: 16px; font-weight: 600 }
  .says { font-size: 12px; fill: #52606d }
  .room { fill: #e8f1fb; stroke: #3a76b5; stroke-width: 1.4 }
  .file { fill: #f5f7fa; stroke: #9aa5b1; stroke-width: 1.2 }
  .coming { fill: none; stroke: #9aa5b1; stroke-width: 1.2; stroke-dasharray: 5 4 }
  .arrow { fill: none; stroke: #52606d; stroke-width: 1.5; marker-end: url(#head) }
"""


@dataclass(frozen=True)
class Room:
    """A folder or a file at the top of ringar/, or one that is to come."""

    name: str
    kind: str  # "room", "file" or "coming"
    says: str
    row: int

    @property
    def x(self) -> int:
        """The middle of its box."""
        return MARGIN + WIDTH // 2 + COLUMN * (COLUMNS.get(self.name, 0) - min(COLUMNS.values()))

    @property
    def y(self) -> int:
        """The middle of its box."""
        return MARGIN + HEIGHT // 2 + ROW * self.row


def rooms() -> dict[str, Room]:
    """Return the rooms of the contract, from the top."""
    contracts = tomllib.loads(PROJECT.read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["id"] == "rooms")
    found = {}
    for row, layer in enumerate(layers):
        for text in map(str.strip, layer.split("|")):
            name = text.strip("()")
            spec = None if text != name else importlib.util.find_spec(f"ringar.{name}")
            if spec is None or spec.origin is None:
                found[name] = Room(name, "coming", "to come", row)
            else:
                kind = "room" if spec.submodule_search_locations else "file"
                found[name] = Room(name, kind, _first_sentence(Path(spec.origin)), row)
    return found


def _first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.split("\n\n")[0].replace("\n", " ").replace("`", "").split(". ")[0].rstrip(".")


def arrows(names: set[str]) -> list[tuple[str, str]]:
    """Return who imports from whom, without what follows from others."""
    graph = grimp.build_graph("ringar", exclude_type_checking_imports=True)
    direct: dict[str, set[str]] = {name: set() for name in names}
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            importer, imported = (name.partition(".")[2].split(".")[0] for name in (module, other))
            if importer != imported and {importer, imported} <= names:
                direct[importer].add(imported)

    def reached(name: str) -> set[str]:
        return direct[name].union(*map(reached, direct[name]))

    return sorted(
        (name, other)
        for name, others in direct.items()
        for other in others.difference(*map(reached, others))
    )


def draw() -> str:
    """Return the picture."""
    found = rooms()
    boxes = [_box(room) for room in found.values()]
    lines = [_line(found[a], found[b]) for a, b in arrows(set(found))]
    width = max(room.x for room in found.values()) + WIDTH // 2 + MARGIN
    height = max(room.y for room in found.values()) + HEIGHT // 2 + MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            "<title>The rooms of ringar, and which imports from which</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto">',
            '<path d="M0 0L8 4L0 8z" fill="#52606d"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            *lines,
            *boxes,
            "</svg>\n",
        ]
    )


def _box(room: Room) -> str:
    name = f"{room.name}/" if room.kind != "file" else f"{room.name}.py"
    says = textwrap.wrap(room.says, 36, max_lines=3, placeholder=" …")
    top = room.y - HEIGHT // 2
    first = room.y - 9 * len(says) + 8
    texts = [f'<text class="name" x="{room.x}" y="{first}" text-anchor="middle">{name}</text>']
    texts += [
        f'<text class="says" x="{room.x}" y="{first + 18 + 16 * i}" text-anchor="middle">'
        f"{escape(line)}</text>"
        for i, line in enumerate(says)
    ]
    box = (
        f'<rect class="{room.kind}" x="{room.x - WIDTH // 2}" y="{top}" width="{WIDTH}" '
        f'height="{HEIGHT}" rx="8"/>'
    )
    return "\n".join([box, *texts])


def _line(importer: Room, imported: Room) -> str:
    """From a box to one below it: straight, or around a corner."""
    x, y, to_x, to_y = importer.x, importer.y, imported.x, imported.y
    if x == to_x:
        path = f"M{x} {y + HEIGHT // 2}V{to_y - HEIGHT // 2}"
    elif importer.name in COLUMNS:  # down, then to the side of the box in the middle
        side = 1 if x > to_x else -1
        level = to_y + (12 * (abs(COLUMNS[importer.name]) * 2 - 3))
        path = f"M{x} {y + HEIGHT // 2}V{level}H{to_x + side * WIDTH // 2}"
    else:  # out of the side, then down
        side = 1 if to_x > x else -1
        path = f"M{x + side * WIDTH // 2} {y}H{to_x}V{to_y - HEIGHT // 2}"
    return f'<path class="arrow" d="{path}"/>'


def main() -> None:
    """Draws the picture, or compares it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, do not write")
    picture = draw()
    if not parser.parse_args().check:
        PICTURE.write_text(picture)
    elif PICTURE.read_text() != picture:
        sys.exit(f"expected {PICTURE} to show the rooms as they are; draw it anew: make rooms")


if __name__ == "__main__":
    main()
