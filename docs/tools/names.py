"""Hold the reference complete: every public name has a docstring and a place on one page.

Public are the names that `ringar/__init__.pyi` and `ringar/cupy/__init__.pyi` list, and of public
modules the names in `__all__`. A page of the reference names each with `::: ringar.name`; a list of
these names, with the first sentence of each docstring, is put before the first.

`Shadowed` is an extension of griffe, which reads the sources for mkdocstrings; the functions with
the names of events are hooks of MkDocs.
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

LISTS = ("ringar", "ringar.cupy")  # packages whose names are those of their __init__.pyi
DIRECTIVE = re.compile(r"^::: (ringar[\w.]*)$", re.MULTILINE)

log = logging.getLogger("mkdocs.hooks.names")  # warnings below `mkdocs` fail a strict build
_placed: Counter[str] = Counter()
_package: griffe.Module


class Shadowed(griffe.Extension):
    """Let a name that a package imports win over its submodule of that name, as it does in Python.

    `ringar.collectives.allreduce` is the function for whoever imports it, and a file.
    """

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Point aliases of a shadowed module at the name that shadows it."""
        loader.resolve_aliases(implicit=False, external=False)
        imported = {
            f"{module.path}.{name}": loader.modules_collection[path]
            for module in _modules(pkg)
            for name, path in module.imports.items()
            if path == f"{module.path}.{name}.{name}" or path.startswith(f"{pkg.path}.")
            if _is_module(module.members.get(name)) and path != f"{module.path}.{name}"
        }
        aliases = [
            (module, name, imported.get(member.final_target.path))
            for module in _modules(pkg)
            for name, member in module.members.items()
            if member.is_alias and member.resolved and not member.final_target.is_alias
        ]
        for module, name, target in aliases:
            if target is not None:
                module.members[name] = griffe.Alias(name, target, parent=module)
        for path, target in imported.items():
            parent = loader.modules_collection[path.rpartition(".")[0]]
            parent.members[target.name] = griffe.Alias(target.name, target, parent=parent)


def on_pre_build(config: MkDocsConfig) -> None:
    """Read the sources, and warn of public names and members without a docstring."""
    global _package
    _placed.clear()
    _package = griffe.load(
        "ringar", search_paths=["."], extensions=griffe.load_extensions(Shadowed)
    )
    for path in _public(_package):
        for name, member in _documented(path, _find(path)):
            if not member.has_docstring:
                log.warning("%s has no docstring", name)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Put a list of the names of a page before the first of them."""
    names = DIRECTIVE.findall(markdown)
    _placed.update(names)
    if not names:
        return markdown
    rows = [f"| [`{name}`][{name}] | {_first_sentence(_find(name))} |" for name in names]
    table = "\n".join(["| | |", "|---|---|", *rows])
    return DIRECTIVE.sub(lambda match: f"{table}\n\n{match[0]}", markdown, count=1)


def on_env(env: Any, **_: Any) -> None:
    """Warn of public names that are on no page, or on several."""
    for path in _public(_package):
        if _placed[path] != 1:
            log.warning("%s is on %d pages of the reference, expected 1", path, _placed[path])


def _public(package: griffe.Module) -> Iterator[str]:
    """Yield the paths of all public names, those of public modules included."""
    paths = list(LISTS)
    while paths:
        path = paths.pop()
        module = _find(path)
        if path in LISTS:
            names = [name for name in module.imports if name not in ("lazy_loader", "cupy")]
        else:
            names = [str(name) for name in module.exports or ()]
            if not names:
                log.warning("%s has no __all__, which says what is public in it", path)
        for name in names:
            if _find(f"{path}.{name}").is_module:
                paths.append(f"{path}.{name}")
            else:
                yield f"{path}.{name}"


def _documented(path: str, item: Any) -> Iterator[tuple[str, Any]]:
    """Yield what must have a docstring: an object, and the public members of a class."""
    yield path, item
    if item.is_class:
        for name, member in item.members.items():
            explained = item.docstring and re.search(rf"^ +{name}:", item.docstring.value, re.M)
            if not (name.startswith("_") or member.is_alias or explained):
                yield f"{path}.{name}", member


def _find(path: str) -> Any:
    return _package[path.removeprefix("ringar").lstrip(".")] if path != "ringar" else _package


def _modules(module: griffe.Module) -> Iterator[griffe.Module]:
    yield module
    for member in module.members.values():
        if isinstance(member, griffe.Module):
            yield from _modules(member)


def _is_module(member: Any) -> bool:
    return isinstance(member, griffe.Module)


def _first_sentence(item: Any) -> str:
    paragraph = item.docstring.value.split("\n\n")[0] if item.docstring else ""
    return re.split(r"(?<=[.:]) ", " ".join(paragraph.split()))[0].replace("|", "\\|")
