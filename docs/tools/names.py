"""Hold the reference complete: every public name has a docstring and a place on one page.

Public are the names that the `__init__.pyi` of `ringar`, `ringar.cupy` and `ringar.elastic` list,
and of public modules the names in `__all__`. A page of the reference names each with
`::: ringar.name`; a list of these names, with the first sentence of each docstring, is put before
the first. Wherever docstrings and pages have such a name in backticks, it becomes a link.

`Names` is an extension of griffe, which reads the sources for mkdocstrings; the functions with the
names of events are hooks of MkDocs.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page

# Packages whose names are those of their __init__.pyi.
LISTS = ("ringar", "ringar.cupy", "ringar.elastic")
DIRECTIVE = re.compile(r"^::: (ringar[\w.]*)$", re.MULTILINE)
MENTION = re.compile(r"(?<!\[)`(ringar(?:\.[a-zA-Z]\w*)+)(\(\))?`")
ROLE = re.compile(r":\w+:`|(?<!`)``(?!`)")
FENCE = re.compile(r"(^ *```.*?^ *```$|^(?: {4}|<!).*?$)", re.MULTILINE | re.DOTALL)

log = logging.getLogger("mkdocs.hooks.names")  # warnings below `mkdocs` fail a strict build
_package: griffe.Module
_placed: Counter[str] = Counter()


class Names(griffe.Extension):
    """Show names as Python does, and turn those that docstrings mention into links."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Change the whole package, when all of it has been read."""
        # setup.py puts the folder there.
        pkg.set_member("launchers", griffe.load("launchers", search_paths=["."]))
        loader.resolve_aliases(implicit=False, external=False)
        items = list(_objects(pkg))
        for item in items:
            if item.is_class and "__init__" not in item.members and "__init__" in item.all_members:
                item.members["__init__"] = item.all_members["__init__"]
        _unshadow(pkg, [item for item in items if isinstance(item, griffe.Module)])
        public = set(_public(pkg))
        for item in items:
            if item.docstring:
                text = item.docstring.value.replace("\nExample:\n", "\n**Example:**\n\n")
                item.docstring.value = _linked(text, pkg, public, item.path)


def _unshadow(package: griffe.Module, modules: list[griffe.Module]) -> None:
    """Let a name that a package imports win over its submodule of that name, as it does in Python.

    `ringar.collectives.allreduce` is the function to an importer, and also a file.
    """
    shadowing = {
        f"{module.path}.{name}": _find(package, path)
        for module in modules
        for name, path in module.imports.items()
        if isinstance(module.members.get(name), griffe.Module)
        if path.startswith("ringar.") and path != f"{module.path}.{name}"
    }
    for module in modules:
        for name, member in list(module.members.items()):
            resolved = member.is_alias and getattr(member, "resolved", False)
            target = shadowing.get(member.final_target.path if resolved else member.path)
            if target is not None:
                module.members[name] = griffe.Alias(name, target, parent=module)


def on_pre_build(config: MkDocsConfig) -> None:
    """Read the sources, and warn of public names and members without a docstring."""
    global _package
    _placed.clear()
    extensions = griffe.load_extensions(Names)
    _package = griffe.load("ringar", search_paths=["."], extensions=extensions)
    for path in _public(_package):
        for name, item in _documented(path, _find(_package, path)):
            if not item.has_docstring:
                log.warning("%s has no docstring", name)
    for item in _objects(_package):
        if item.docstring and ROLE.search(item.docstring.value):
            log.warning("%s has a docstring that is not Markdown: use single backticks", item.path)
    for module in _public_modules(_package):
        if module not in LISTS and not _find(_package, module).exports:
            log.warning("%s has no __all__, which says what is public in it", module)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Link the names that a page mentions, and put a list of those that it explains first."""
    public = set(_public(_package))
    parts = FENCE.split(markdown)
    parts[::2] = [_linked(text, _package, public, page.file.src_uri) for text in parts[::2]]
    markdown = "".join(parts)
    names = DIRECTIVE.findall(markdown)
    _placed.update(names)
    for name in set(names) - public:
        log.warning("%s has a place for %s, which is not public", page.file.src_uri, name)
    if not names or not public.issuperset(names):
        return markdown
    rows = [f"| [`{name}`][{name}] | {_first_sentence(name)} |" for name in names]
    table = "\n".join(["| | |", "|---|---|", *rows])
    return DIRECTIVE.sub(lambda match: f"{table}\n\n{match[0]}", markdown, count=1)


def on_env(env: Any, **_: Any) -> None:
    """Warn of public names that are on no page, or on several."""
    for path in _public(_package):
        if _placed[path] != 1:
            log.warning("%s is on %d pages of the reference, expected 1", path, _placed[path])


def _linked(text: str, package: griffe.Module, public: set[str], place: str) -> str:
    """Return `text` with links for the public names in it; warn of names that are not there."""

    def link(match: re.Match[str]) -> str:
        name = match[1]
        parent = name.rpartition(".")[0]
        if parent in public and _find(package, parent).is_attribute:
            name = parent  # a member of an object, whose class the sources do not tell
        if name in public:
            return f"[{match[0]}][{name}]"
        try:
            _find(package, name)
        except KeyError:
            log.warning("%s mentions %s, which is not there", place, name)
        return match[0]

    return MENTION.sub(link, text)


def _public_modules(package: griffe.Module) -> Iterator[str]:
    """Yield the paths of the modules whose names are public."""
    paths = list(LISTS)
    while paths:
        path = paths.pop()
        yield path
        paths += [
            f"{path}.{name}"
            for name in _names(package, path)
            if (path, name) != ("ringar", "cupy")
            if _find(package, f"{path}.{name}").is_module
        ]


def _public(package: griffe.Module) -> Iterator[str]:
    """Yield the paths of all public names that are no modules."""
    for path in _public_modules(package):
        for name in _names(package, path):
            if not _find(package, f"{path}.{name}").is_module:
                yield f"{path}.{name}"


def _names(package: griffe.Module, path: str) -> list[str]:
    module = _find(package, path)
    if path in LISTS:
        return [name for name in module.imports if name != "lazy_loader"]
    return [str(name) for name in module.exports or ()]


def _documented(path: str, item: Any) -> Iterator[tuple[str, Any]]:
    """Yield the items that need a docstring: `item`, and members unexplained by their class."""
    yield path, item
    if item.is_class:
        explained = set(
            re.findall(r"^ +(\w+):", item.docstring.value, re.M) if item.docstring else ()
        )
        for name, member in item.members.items():
            if not (name.startswith("_") or member.is_alias or name in explained):
                yield f"{path}.{name}", member


def _find(package: griffe.Module, path: str) -> Any:
    return package[path.removeprefix("ringar.")] if path != "ringar" else package


def _objects(item: Any) -> Iterator[Any]:
    yield item
    for member in item.members.values():
        if not member.is_alias:
            yield from _objects(member)


def _first_sentence(path: str) -> str:
    docstring = _find(_package, path).docstring
    paragraph = docstring.value.split("\n\n")[0] if docstring else ""
    return re.split(r"(?<=[.]) ", " ".join(paragraph.split()))[0].replace("|", "\\|")
