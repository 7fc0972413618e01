"""Write the options of `ringarrun` into its page, and check that the page has all variables."""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.pages import Page

from ringar.launchers import options

ROOT = Path(__file__).resolve().parents[2]
PAGE = "reference/ringarrun.md"
MARK = "<!--- The options, from the launcher's own parser -->"
# In Python any string is one that is read or set; in C++ the environment is asked for it.
VARIABLE = {"*.py": r'"(RINGAR_[A-Z_]+)"', "*.cc": r'getenv\("(RINGAR_[A-Z_]+)"'}

log = logging.getLogger("mkdocs.hooks.launcher")


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Replace the mark by a table for each group of options."""
    if page.file.src_uri != PAGE:
        return markdown
    for name in sorted(_variables() - set(re.findall(r"`(RINGAR_[A-Z_]+)`", markdown))):
        log.warning("%s is read or set by ringar and is missing in %s", name, PAGE)
    if MARK not in markdown:
        log.warning("%s has no line %s", PAGE, MARK)
    return markdown.replace(MARK, "\n".join(_tables(options.parser())))


def _variables() -> set[str]:
    return {
        name
        for folder in ("ringar", "launchers", "tf_ops")
        for pattern, expression in VARIABLE.items()
        for file in (ROOT / folder).rglob(pattern)
        if "cupy" not in file.parts  # its kernels have macros of such names
        for name in re.findall(expression, file.read_text())
    }


def _tables(parser: argparse.ArgumentParser) -> Iterator[str]:
    for group in parser._action_groups:
        shown = [
            a for a in group._group_actions if a.option_strings and a.help != argparse.SUPPRESS
        ]
        if shown:
            title = "general" if group.title == "options" else str(group.title).partition(";")[0]
            yield from ("", f"### {title[:1].upper()}{title[1:]}", "", "| | |", "|---|---|")
            yield from (f"| {_names(action)} | {_text(action.help or '')} |" for action in shown)


def _names(action: argparse.Action) -> str:
    value = action.metavar or (
        f"{{{','.join(map(str, action.choices))}}}" if action.choices else ""
    )
    names = (f"{name} {value}".strip() for name in action.option_strings)
    return ", ".join(f"`{name}`".replace("|", "\\|") for name in names)


def _text(text: str) -> str:
    return re.sub(r"([\[\]|<*_])", r"\\\1", text.replace("%%", "%"))
