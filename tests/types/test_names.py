"""The script that `make lint` checks for types leaves no public name out."""

from __future__ import annotations

import ast
import re

from tests.plugin.jobs import ROOT

SCRIPT = ROOT / "tests" / "types" / "user_script.py"

#: Modules below `ringar`, and their files: each name in `__all__`, or in a stub, is public.
MODULES = {
    "asynchronous": "ringar/asynchronous/__init__.py",
    "callbacks": "ringar/callbacks.py",
    "cost_model": "ringar/job/cost_model/__init__.py",
    "cupy": "ringar/cupy/__init__.pyi",
    "data": "ringar/data/__init__.py",
    "elastic": "ringar/elastic/__init__.pyi",
    "errors": "ringar/errors.py",
    "horovod": "ringar/horovod/__init__.py",
    "layers": "ringar/layers.py",
    "parallel": "ringar/parallel/__init__.py",
    "parallel.scan": "ringar/parallel/scan/__init__.py",
    "ray": "ringar/ray/__init__.py",
    "spark": "ringar/spark.py",
    "parallel.scheduled": "ringar/research/scheduled/__init__.py",
    "parallel.sparse": "ringar/research/sparse/__init__.py",
    "threads": "ringar/job/threads.py",
}


def exported(path: str) -> list[str]:
    """Return the names of `__all__`, or those that a stub imports."""
    if path.endswith(".pyi"):
        return listed(path)
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise AssertionError(f"{path}: no __all__")


def listed(path: str) -> list[str]:
    """Return the names that a stub imports."""
    imports = (
        n for n in ast.parse((ROOT / path).read_text()).body if isinstance(n, ast.ImportFrom)
    )
    return [alias.asname or alias.name for node in imports for alias in node.names]


def public_names() -> set[str]:
    """Return the public names, but not the modules."""
    top = set(listed("ringar/__init__.pyi"))
    assert top >= {module.partition(".")[0] for module in MODULES}
    names = {f"ringar.{name}" for name in top - MODULES.keys()}
    for module, path in MODULES.items():
        names |= {f"ringar.{module}.{name}" for name in exported(path)}
    return names - {f"ringar.{module}" for module in MODULES}


def test_every_public_name_is_in_the_script() -> None:
    # `from ringar import layers` makes `layers.Sum` a name of ringar.
    script = re.sub(rf"\b(?<!\.)({'|'.join(MODULES)})\.", r"ringar.\1.", SCRIPT.read_text())
    chains = re.findall(r"ringar(?:\.\w+)+", script)
    names = {".".join(chain.split(".")[:end]) for chain in chains for end in (2, 3, 4)}
    assert public_names() <= names, sorted(public_names() - names)
