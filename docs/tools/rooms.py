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
from grandalf.graphs import Edge, Graph, Vertex
from grandalf.layouts import SugiyamaLayout, VertexViewer
from grandalf.routing import EdgeViewer, route_with_lines

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Point = tuple[float, float]

PICTURE = Path(__file__).parents[1] / "pictures" / "rooms.svg"
PROJECT = Path(__file__).parents[2] / "pyproject.toml"

WIDTH, HEIGHT = 236, 84
BESIDE, BELOW = 26, 46  # between boxes
MARGIN = 14

STYLE = """
  text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #1f2933 }
  .name { font-size: 16px; font-weight: 600 }
  .says { font-size: 12px; fill: #52606d }
  .room { fill: #e8f1fb; stroke: #3a76b5; stroke-width: 1.4 }
  .file { fill: #f5f7fa; stroke: #9aa5b1; stroke-width: 1.2 }
  .arrow { fill: none; stroke: #52606d; stroke-width: 1.5; marker-end: url(#head) }
"""


@dataclass
class Room:
    """A folder or a file at the top of ringar/, and the middle of its box."""

    name: str
    is_folder: bool
    says: str
    x: float = 0
    y: float = 0


def rooms() -> dict[str, Room]:
    """Return the rooms of the contract, from the top."""
    contracts = tomllib.loads(PROJECT.read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["id"] == "rooms")
    by_name = {}
    for name in (text.strip() for layer in layers for text in layer.split("|")):
        spec = importlib.util.find_spec(f"ringar.{name}")
        if spec is None or spec.origin is None:
            sys.exit(f"expected ringar.{name}, which {PROJECT} names, found none")
        is_folder = spec.submodule_search_locations is not None
        by_name[name] = Room(name, is_folder, _first_sentence(Path(spec.origin)))
    return by_name


def _first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.split("\n\n")[0].replace("\n", " ").replace("`", "").split(". ")[0].rstrip(".")


def arrows(names: set[str]) -> list[tuple[str, str]]:
    """Return the imports between rooms, without those that follow from others."""
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
        for name, targets in direct.items()
        for other in targets.difference(*map(reached, targets))
    )


class Numbered(Vertex):
    """A vertex whose place in a set is the same in every run; so is then the picture."""

    def __hash__(self) -> int:
        return int(self.data)


class Arrow(Edge):
    """An edge of which the same holds."""

    def __hash__(self) -> int:
        return int(self.data)


def place(by_name: dict[str, Room], links: list[tuple[str, str]]) -> list[list[Point]]:
    """Place the rooms, each above those that it imports from; return the way of each arrow."""
    vertices = {name: Numbered(number) for number, name in enumerate(by_name)}
    edges = [Arrow(vertices[a], vertices[b], data=i) for i, (a, b) in enumerate(links)]
    for vertex in vertices.values():
        vertex.view = VertexViewer(WIDTH, HEIGHT)
    for edge in edges:
        edge.view = EdgeViewer()
    (connected,) = Graph(list(vertices.values()), edges).C
    layout = SugiyamaLayout(connected)
    layout.xspace, layout.yspace = BESIDE, BELOW
    layout.route_edge = route_with_lines
    layout.init_all()
    layout.draw(20)
    left = min(vertex.view.xy[0] for vertex in vertices.values()) - WIDTH / 2 - MARGIN
    top = min(vertex.view.xy[1] for vertex in vertices.values()) - HEIGHT / 2 - MARGIN
    for name, vertex in vertices.items():
        x, y = vertex.view.xy
        by_name[name].x, by_name[name].y = x - left, y - top
    return [[(x - left, y - top) for x, y in edge.view._pts] for edge in edges]


def draw() -> str:
    """Return the picture."""
    by_name = rooms()
    ways = place(by_name, arrows(set(by_name)))
    width = max(room.x for room in by_name.values()) + WIDTH / 2 + MARGIN
    height = max(room.y for room in by_name.values()) + HEIGHT / 2 + MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            'role="img">',
            "<title>The rooms of ringar, and which imports from which</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto">',
            '<path d="M0 0L8 4L0 8z" fill="#52606d"/></marker></defs>',
            f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>',
            *map(_line, ways),
            *map(_box, by_name.values()),
            "</svg>\n",
        ]
    )


def _box(room: Room) -> str:
    name = f"{room.name}/" if room.is_folder else f"{room.name}.py"
    says = textwrap.wrap(room.says, 36, max_lines=3, placeholder=" …")
    top = room.y - HEIGHT / 2
    first = room.y - 9 * len(says) + 8
    texts = [
        f'<text class="name" x="{room.x:.0f}" y="{first:.0f}" text-anchor="middle">{name}</text>'
    ]
    texts += [
        f'<text class="says" x="{room.x:.0f}" y="{first + 18 + 16 * i:.0f}" text-anchor="middle">'
        f"{escape(line)}</text>"
        for i, line in enumerate(says)
    ]
    box = (
        f'<rect class="{"room" if room.is_folder else "file"}" x="{room.x - WIDTH / 2:.0f}" '
        f'y="{top:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="8"/>'
    )
    return "\n".join([box, *texts])


def _line(way: list[Point]) -> str:
    path = "L".join(f"{x:.0f} {y:.0f}" for x, y in way)
    return f'<path class="arrow" d="M{path}"/>'


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
