"""Bring README, changelog and linked source files into the site, under the version of the code.

Links in the Markdown files lead from file to file of the repository, so that they work on a code
host too. Here they are rewritten for the site, which has the files of `docs/` at its root.
"""

from __future__ import annotations

import logging
import posixpath
import re
import runpy
from pathlib import Path
from textwrap import dedent

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# Documents outside docs/, and their pages.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "code_of_conduct.md",
    "SECURITY.md": "security.md",
}
#: Indented command lines and what they print, which have prompts as blocks marked `console` have.
COMMANDS = re.compile(r"(?<=\n\n)    \$ .*\n(?:    .*\n)*")
# What the search puts first and last; other pages of the reference have 1.5, all others 1.
BOOSTS = {
    "reference/collectives.md": 2,
    "reference/keras.md": 2,
    "reference/cost_model.md": 0.5,
    "changelog.md": 0.5,
}
LOADED = re.compile(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="((?:https?:)?//[^"]+)"')

log = logging.getLogger("mkdocs.hooks.pages")  # warnings below `mkdocs` fail a strict build


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the version into the name of the site."""
    version = runpy.run_path(str(ROOT / "ringar/version.py"))["__version__"]
    config.site_name = f"{config.site_name} {version}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents that lie outside docs/."""
    for document, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / document)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links to files of the repository as links of the site; mark command lines."""
    source = page.file.src_uri
    if source == PAGES["README.md"]:
        page.meta["hide"] = ["navigation", "toc"]  # the landing page has links of its own
    usual = 1.5 if source.startswith("reference/") else 1
    page.meta["search"] = {"boost": BOOSTS.get(source, usual)}
    origin = {uri: document for document, uri in PAGES.items()}.get(source, f"docs/{source}")

    def rewrite(match: re.Match[str]) -> str:
        path, separator, anchor = match[1].partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
        if not path or not (ROOT / target).is_file():
            return match[0]  # an anchor, an address, or broken: MkDocs says so
        uri = _place(target, config, files)
        return f"]({posixpath.relpath(uri, posixpath.dirname(source) or '.')}{separator}{anchor})"

    markdown = COMMANDS.sub(lambda match: f"```console\n{dedent(match[0])}```\n", markdown)
    return re.sub(r"\]\(([^)\s]+)\)", rewrite, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Warn of what a page would load from the network."""
    for address in LOADED.findall(output):
        log.warning("%s loads %s from the network", page.file.src_uri, address)
    return output


def _place(target: str, config: MkDocsConfig, files: Files) -> str:
    """Return where a file of the repository is in the site, which gets a copy of source files."""
    if target in PAGES:
        return PAGES[target]
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    if target.startswith("examples/gallery/"):
        return f"{target.removeprefix('examples/').removesuffix('.py')}.md"
    uri = f"sources/{target}"
    if files.get_file_from_path(uri) is None:
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / target)))
    return uri
