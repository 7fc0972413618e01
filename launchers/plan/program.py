"""Find the program of every rank: a Python script, a Python module, or any other program.

`ringarrun train.py` and `ringarrun -m package.train` run with the Python of `ringarrun` itself, as
with torchrun: ranks have the packages of the environment that `ringarrun` is installed in.
`ringarrun python train.py` runs the first `python` in PATH.

A missing script, module or program is an error before any rank starts. Modules are looked up, not
imported: an import takes time, and has effects.
"""

from __future__ import annotations

import os
import pkgutil
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder

from ringar.launchers.errors import UsageError
from ringar.launchers.plan.suggest import close_to, did_you_mean


@dataclass(frozen=True)
class Program:
    """The command of every rank, and the Python script or module that it runs, if it names one."""

    command: tuple[str, ...]
    script: str = ""
    module: str = ""


def resolve(
    words: Sequence[str], module: bool, path: str | None, python_path: str | None = None
) -> Program:
    """Find the program that the words behind the options of `ringarrun` name.

    Args:
        words: a script, a module or a program, and its arguments.
        module: whether the first word is a module (`-m`).
        path: the PATH in which ranks look for a program.
        python_path: the PYTHONPATH in which they look for a module.

    Raises:
        UsageError: there is nothing to run, or it cannot be run; the message says why.
    """
    if not words:
        kind, example = ("module", "-m package.train") if module else ("program", "train.py")
        raise UsageError(
            f"expected a {kind} to run after the options, received none; "
            f"for example: ringarrun -np 2 {example}"
        )
    name = words[0]
    if module:
        fault = module_fault(name, [os.getcwd(), *(python_path or "").split(os.pathsep)])
        if fault:
            raise UsageError(fault, 127)
        return Program((sys.executable, "-m", *words), module=name)
    if name.endswith(".py") and os.path.isfile(name):
        if not os.access(name, os.R_OK):
            raise UsageError(f"{name}: expected a Python script that can be read", 126)
        return Program((sys.executable, *words), script=name)
    check_executable(name, path)
    return Program(tuple(words))


def check_executable(name: str, path: str | None) -> None:
    """Raise `UsageError` unless the program `name` can be executed.

    Args:
        name: a file with its folder, or a name to look up.
        path: the PATH in which ranks look it up.
    """
    if shutil.which(name, path=path):
        return
    if os.path.isdir(name):
        raise UsageError(f"{name}: expected a program to run, received a directory", 126)
    if os.path.exists(name) and not os.access(name, os.X_OK):
        raise UsageError(
            f"{name}: expected a program or a Python script (.py) to run, but this file is not "
            "executable; make it executable, or name the program that runs it",
            126,
        )
    folder, file = os.path.split(name)
    hints: Iterable[str] = ()
    if file.endswith(".py"):
        kind, where = "Python script", "there is no such file"
        scripts = [entry for entry in _entries(folder or ".") if entry.endswith(".py")]
        hints = (os.path.join(folder, close) for close in close_to(file, scripts))
    else:
        kind, where = "program", "it is no such file" if folder else "it is found nowhere in PATH"
        if os.path.exists(name):
            hints = [f"./{name}"]
        elif name == "python" and shutil.which("python3", path=path):
            hints = ["python3"]
    raise UsageError(f"{name}: expected a {kind} to run, but {where}{did_you_mean(hints)}", 127)


def module_fault(name: str, folders: Sequence[str]) -> str:
    """Return why `python -m name` would not run; "" if it would.

    Neither the module nor its packages are imported.

    Args:
        name: the module, with its packages.
        folders: where Python looks for it before it looks in `sys.path`.
    """
    expected = f"-m {name}: expected a Python module"
    if name.endswith(".py") or "/" in name:
        guess = name.removesuffix(".py").strip("./").replace("/", ".")
        return f"{expected}, received the name of a file{did_you_mean([f'-m {guess}', name])}"
    path: Sequence[str] | None = [*folders, *sys.path]
    for part in _prefixes(name):
        package, dot, last = part.rpartition(".")
        spec = _find(part, path or ())
        if spec is None:
            names = _names((path or ()) if package else folders)
            hints = (package + dot + close for close in close_to(last, names))
            return f"{expected}, but there is no {part}{did_you_mean(hints)}"
        path = spec.submodule_search_locations
    if path is not None and not _find(f"{name}.__main__", path):
        return f"{expected} to run, but {name} is a package without {name}.__main__"
    return ""


def _prefixes(name: str) -> Iterator[str]:
    """Yield `a`, `a.b`, `a.b.c` for `a.b.c`."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


def _find(name: str, path: Sequence[str]) -> ModuleSpec | None:
    """Find a module as the import system does, without importing its packages.

    `importlib.util.find_spec` would import them; `PathFinder` needs them for namespace packages.

    Args:
        name: its full name.
        path: the folders of its package, or `sys.path`.
    """
    portions: list[str] = []
    for folder in path:
        importer = pkgutil.get_importer(folder or os.getcwd())
        spec = importer.find_spec(name) if importer else None
        if spec is not None and spec.loader is not None:
            return spec
        portions += (spec and spec.submodule_search_locations) or ()
    if portions:
        package = ModuleSpec(name, None, is_package=True)
        package.submodule_search_locations = portions
        return package
    # Built-in modules, which Python 3.10 finds without a path alone, and those of editable
    # installations.
    where = path if "." in name else None
    finders = (finder for finder in sys.meta_path if finder is not PathFinder)
    return next((spec for finder in finders if (spec := finder.find_spec(name, where))), None)


def _names(folders: Iterable[str]) -> list[str]:
    """Return the names of the modules and packages that lie in `folders`."""
    return [
        name
        for folder in folders
        for entry in _entries(folder)
        if (name := entry.removesuffix(".py")).isidentifier()
        and (name != entry or os.path.isdir(os.path.join(folder, entry)))
    ]


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
