"""Write the options of `ringarrun` and the variables of the environment into their pages."""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

from mkdocs.structure.pages import Page

from ringar.job import settings
from ringar.launchers.command_line import options

OPTIONS = "<!--- The options, from the launcher's own parser -->"
OF_USERS = "<!--- The settings of users, from ringar/job/settings.py -->"
OF_THE_LAUNCHER = "<!--- The settings of the launcher, from ringar/job/settings.py -->"
#: The marks of each page, each of which stands for tables.
PAGES = {
    "reference/ringarrun.md": (OPTIONS,),
    "reference/settings.md": (OF_USERS, OF_THE_LAUNCHER),
}

log = logging.getLogger("mkdocs.hooks.launcher")


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Replace each mark by its tables."""
    for mark in PAGES.get(page.file.src_uri, ()):
        if mark not in markdown:
            log.warning("%s has no line %s", page.file.src_uri, mark)
        markdown = markdown.replace(mark, "\n".join(_lines(mark)))
    return markdown


def _lines(mark: str) -> Iterator[str]:
    if mark == OPTIONS:
        return _tables(options.parser())
    return _settings(settings.OF_USERS if mark == OF_USERS else settings.OF_THE_LAUNCHER)


def _settings(table: Sequence[settings.Setting]) -> Iterator[str]:
    yield from ("| variable | values | default | read by | meaning |", "|---|---|---|---|---|")
    for name, values, default, reader, meaning in table:
        yield f"| `{settings.PREFIX}{name}` | {values} | {default} | `{reader}` | {meaning} |"


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
