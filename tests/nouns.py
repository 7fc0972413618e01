"""Names in Python and C++ that are a pronoun, an adverb, an adjective or a participle.

    python -m tests.nouns [PATH …]      lists them and fails if there are any; `make lint` asks this

A name says what it holds: `own`, `found` and `whole` say it only to those who wrote it. A compound
such as `own_rows` or `rows_found` has its noun.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_WORDS = """
own its one found whole given made meant left due mine theirs ours others another this that these
those what which such said known asked taken kept held seen sent told wanted needed missing wrong
each every both drawn begun absent used stopped some there gone begins alone late unknown here ended
written changed allowed narrow wide bad tried heard lost met paid cold warm more many few different
"""

# `left` and `right` of two operands or neighbours.
_FAULTS = frozenset(_WORDS.split()) - {"left"}
_OF_CPP = {"this", "what"}

# What users call by these names: arguments, attributes and methods of the public interface.
_PUBLIC = {
    "ringar/asynchronous/shard.py": {"taken"},
    "ringar/elastic/callback.py": {"every"},
    "ringar/keras/save_on_signal.py": {"every"},
    "ringar/parallel/pipeline/model.py": {"whole"},
    "ringar/parallel/pipeline/module.py": {"what"},
    "ringar/research/scheduled/lasso.py": {"every"},
    "ringar/research/scheduled/rounds.py": {"every"},
    "ringar/research/wavefront/stack.py": {"what"},
    "ringar/sharding/grid.py": {"what"},
    "ringar/sharding/lineage.py": {"own"},
}

_IGNORED = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\#[^\n]*|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S
)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def bindings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of all that Python code gives a name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def identifiers(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of all identifiers of C++ code."""
    code = _IGNORED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)
    for number, line in enumerate(code.splitlines(), 1):
        for match in _IDENTIFIER.finditer(line):
            yield number, match[0]


def faults(path: Path) -> list[tuple[int, str]]:
    """Return the line and the name of each fault of a file, the first of each name."""
    is_python = path.suffix == ".py"
    names = bindings if is_python else identifiers
    wrong_words = _FAULTS - (_PUBLIC.get(str(path), set()) if is_python else _OF_CPP)
    first: dict[str, int] = {}
    for number, name in names(path.read_text()):
        if name.strip("_") in wrong_words:
            first.setdefault(name, number)
    return sorted((number, name) for name, number in first.items())


def main(roots: list[str]) -> int:
    """List the faults of the files that git tracks below `roots`; return the exit code."""
    listing = subprocess.run(
        ["git", "ls-files", *roots], check=True, capture_output=True, text=True
    )
    paths = [Path(line) for line in listing.stdout.splitlines()]
    lines = [
        f"{path}:{number}: `{name}` is no noun; name what it holds"
        for path in paths
        if path.suffix in {".py", ".h", ".cc", ".cu", ".inc"}
        for number, name in faults(path)
    ]
    print("\n".join(lines) or "all names are nouns")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
