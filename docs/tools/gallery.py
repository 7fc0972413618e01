"""Makes the pages and notebooks of the gallery from `examples/gallery/`.

An example is a script in the percent format of Jupytext. Its last cell, tagged `output`, has what
the script prints and the picture that it draws; the notebook has all other cells.

    make gallery                              runs all examples, and puts in what they print
    python docs/tools/gallery.py images text  runs these

The functions with the names of events are hooks of MkDocs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jupytext
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "gallery"
PICTURES = ROOT / "docs" / "pictures" / "gallery"

OUTPUT_CELL = '''
# %% [markdown] tags=["output"]
"""
## Output

```text
{text}
```

![What the example draws](../pictures/gallery/{name}.png)
"""
'''


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page, the notebook and the script of each example."""
    for path in sorted(EXAMPLES.glob("*.py")):
        contents = {".md": page(path), ".ipynb": jupytext.writes(notebook(path), "ipynb")}
        for suffix, content in contents.items():
            uri = f"gallery/{path.stem}{suffix}"
            files.append(File.generated(config, uri, content=content))
        files.append(File.generated(config, f"gallery/{path.name}", abs_src_path=str(path)))
    return files


def page(path: Path) -> str:
    """Return the page of an example: its text and code, its output and its picture."""
    first, *cells = jupytext.read(path).cells
    links = f"[Notebook]({path.stem}.ipynb) · [Script]({path.name}) · [Gallery](index.md)"
    parts = [first.source, links]
    for cell in cells:
        is_code = cell.cell_type == "code"
        parts.append(f"```python\n{cell.source.strip()}\n```" if is_code else cell.source)
    return "\n\n".join(parts) + "\n"


def notebook(path: Path) -> Any:
    """Return the notebook of an example, without output."""
    book = jupytext.read(path)
    book.cells = [cell for cell in book.cells if "output" not in cell.metadata.get("tags", ())]
    book.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    return book


def output(path: Path) -> str:
    """Return the text of an example's output cell."""
    (cell,) = [c for c in jupytext.read(path).cells if "output" in c.metadata.get("tags", ())]
    return cell.source.partition("```text\n")[2].partition("```")[0]


def main(names: list[str]) -> None:
    """Run examples, and put what they print and draw into their files."""
    from PIL import Image  # comes with Matplotlib, which the site does without

    for name in names or sorted(path.stem for path in EXAMPLES.glob("*.py")):
        path = EXAMPLES / f"{name}.py"
        with tempfile.TemporaryDirectory() as folder:
            job = subprocess.run(
                [sys.executable, path],
                cwd=folder,
                env=os.environ | {"MPLBACKEND": "agg"},
                stdout=subprocess.PIPE,
                text=True,
                timeout=600,
                check=True,
            )
            picture = Image.open(Path(folder, f"{name}.png")).convert("RGB").quantize(128)
            picture.save(PICTURES / f"{name}.png", optimize=True)
        code = path.read_text().partition("\n# %% [markdown] tags")[0]
        path.write_text(code + OUTPUT_CELL.format(text=job.stdout.strip(), name=name))
        print(f"{name}:\n{job.stdout}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
