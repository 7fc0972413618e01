"""The examples of the gallery: as scripts and as notebooks they print what their pages show."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.plugin import fast_if, run_job
from tests.plugin.jobs import PYTHONPATH, ROOT
from tests.run_document import lines

EXAMPLES = {path.stem: path for path in sorted((ROOT / "examples" / "gallery").glob("*.py"))}
#: Packages that an example needs and the extra `test` does not bring.
PACKAGES = {"tracking": "mlflow"}


def gallery() -> Any:
    """Returns the module that makes the pages."""
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "docs" / "tools" / "gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_numbers(text: str) -> list[str]:
    """Returns the lines in order; what ranks print at the same time may come in any."""
    return sorted(lines(text))


@pytest.mark.job
@pytest.mark.deadline(400)
@pytest.mark.parametrize("name", [fast_if(name == "series", name) for name in EXAMPLES])
def test_a_script(name: str, tmp_path: Path) -> None:
    pytest.importorskip(PACKAGES.get(name, "keras"))
    job = run_job(None, EXAMPLES[name], deadline=380, cwd=tmp_path, env={"MPLBACKEND": "agg"})
    assert without_numbers(job.check().stdout) == without_numbers(gallery().output(EXAMPLES[name]))
    assert (tmp_path / f"{name}.png").stat().st_size > 5000


@pytest.mark.job
@pytest.mark.deadline(400)
@pytest.mark.parametrize("name", [fast_if(name == "finetuning", name) for name in EXAMPLES])
def test_a_notebook(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from nbclient import NotebookClient

    pytest.importorskip(PACKAGES.get(name, "keras"))
    for variable in [name for name in os.environ if name.startswith("RINGAR_RANK")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    book = gallery().notebook(EXAMPLES[name])
    NotebookClient(book, timeout=380, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", ())]
    printed = "".join(output.text for output in outputs if output.get("name") == "stdout")
    assert without_numbers(printed) == without_numbers(gallery().output(EXAMPLES[name]))
    pictures = [output for output in outputs if "image/png" in output.get("data", ())]
    assert len(pictures) == 1, "the notebook shows the picture below its cell"


def test_each_example_has_its_place() -> None:
    """Each has a check, a small picture, and a line in the index and in the navigation."""
    index = (ROOT / "docs" / "gallery" / "index.md").read_text()
    groups = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    (pages,) = [group["Gallery"] for group in groups if "Gallery" in group]
    places = {page if isinstance(page, str) else next(iter(page.values())) for page in pages}
    assert places == {"gallery/index.md", *(f"gallery/{name}.md" for name in EXAMPLES)}
    for name, path in EXAMPLES.items():
        picture = ROOT / "docs" / "pictures" / "gallery" / f"{name}.png"
        assert 5000 < picture.stat().st_size < 40_000, name
        assert f"](../pictures/gallery/{name}.png)](../../examples/gallery/{name}.py)" in index
        code = [cell.source for cell in gallery().notebook(path).cells if cell.cell_type == "code"]
        assert any(line.startswith("assert ") for line in "\n".join(code).splitlines()), name
