"""docs/troubleshooting.md: a heading for each error class, and texts that the code still has."""

from __future__ import annotations

import re

import pytest

from ringar import errors
from tests.plugin.jobs import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
#: The first cells of rows, which quote messages. A part of 7 characters or more is looked up.
QUOTES = [
    quote
    for row in re.findall(r"^\| (`.+?) \|", PAGE, re.MULTILINE)
    for quote in re.findall(r"`([^`]+)`", row)
    if " " in quote
]


def literals() -> str:
    """Returns the text of all sources, with string literals that follow each other joined."""
    folders = [ROOT / name for name in ("ringar", "launchers", "tf_ops")]
    paths = [path for folder in folders for kind in ("*.py", "*.cc") for path in folder.rglob(kind)]
    text = "\n".join(path.read_text() for path in paths)
    return re.sub(r"['\"]\s+f?['\"]", "", text).replace('\\"', '"')


SOURCES = literals()


@pytest.mark.parametrize("name", errors.__all__)
def test_each_error_class_has_a_heading(name: str) -> None:
    assert re.search(rf"^### {name}$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("quote", QUOTES)
def test_quoted_messages_are_those_of_the_code(quote: str) -> None:
    parts = [part.strip() for part in quote.split("…")]
    missing = [part for part in parts if len(part) >= 7 and part not in SOURCES]
    assert not missing
    assert any(len(part) >= 7 for part in parts), "expected a quote that tells messages apart"
