"""The documentation holds: its snippets run, its links lead somewhere, its commands exist."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt

from tests.plugin import fast_if, run_job
from tests.plugin.jobs import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
#: Those about training, on any number of ranks.
GUIDES = ("training", "data", "uneven", "checkpoints")
WITH_SNIPPETS = [path for path in DOCUMENTS if "```python" in path.read_text()]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.job
@pytest.mark.deadline(400)
@pytest.mark.parametrize("np", [fast_if(False, None), 2])
def test_snippets_run(np: int | None, tmp_path: Path) -> None:
    script = ROOT / "tests" / "run_document.py"
    paths = [str(path) for path in WITH_SNIPPETS]
    result = run_job(np, script, args=paths, deadline=380, cwd=tmp_path).check()
    for path in paths:
        assert f"{path}:" in result.stdout


@pytest.mark.job
@pytest.mark.slow
@pytest.mark.deadline(240)
@pytest.mark.parametrize("np", [3, 4])
def test_guides_run_on_more_ranks(np: int, tmp_path: Path) -> None:
    script = ROOT / "tests" / "run_document.py"
    paths = [str(ROOT / "docs" / f"{guide}.md") for guide in GUIDES]
    run_job(np, script, args=paths, deadline=220, cwd=tmp_path).check()


@pytest.mark.parametrize("path", WITH_SNIPPETS, ids=name)
def test_a_page_shows_all_of_its_code_and_what_it_prints(path: Path) -> None:
    blocks = MarkdownIt().parse(path.read_text())
    hidden = [block.map for block in blocks if "invisible-code" in block.content]
    assert not hidden, f"expected visible code only, received comments with code at lines {hidden}"
    first = next(i for i, block in enumerate(blocks) if block.info == "python")
    if "skip: next" not in blocks[first - 1].content:
        assert blocks[first + 1].info == "text", "expected the output below the first script"


@functools.cache
def headings(path: Path) -> set[str]:
    """Returns the anchors of a document's headings, as GitHub makes them."""
    tokens = MarkdownIt().parse(path.read_text())
    texts = [after.content for t, after in itertools.pairwise(tokens) if t.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", text).lower().replace(" ", "-") for text in texts}


def targets(path: Path) -> list[str]:
    """Returns what the links and images of a document point to."""
    urls = []
    for block in MarkdownIt().parse(path.read_text()):
        for token in block.children or []:
            target = token.attrs.get("href") or token.attrs.get("src")
            if target:
                urls.append(unquote(str(target)))
    return urls


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_relative_links_lead_to_files_and_headings(path: Path) -> None:
    broken = []
    for target in targets(path):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        place = (path.parent / file).resolve() if file else path
        is_document = place.suffix == ".md"
        if not place.exists() or (anchor and is_document and anchor not in headings(place)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_make_targets_exist(path: Path) -> None:
    names = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    # In code only: "`make demo`" or a command line of a block, not "to make a plan".
    command = r"(?:`|^\$? *)make ((?:[a-z0-9]+-)*[a-z0-9]+)"
    mentions = set(re.findall(command, path.read_text(), re.MULTILINE))
    assert mentions <= names, mentions - names


def test_the_version_is_in_the_changelog() -> None:
    version = re.search(r'__version__ = "(.+)"', (ROOT / "ringar/version.py").read_text())
    assert version is not None
    changelog = (ROOT / "CHANGELOG.md").read_text()
    released = version[1].partition(".dev")[0]
    heading = "## [Unreleased]" if "dev" in version[1] else f"## [{released}]"
    assert heading in changelog


def sources() -> list[Path]:
    """The files that may tell a user what to install."""
    folders = [ROOT / name for name in ("ringar", "launchers", "benchmarks", "examples", "tf_ops")]
    code = [path for folder in folders for kind in ("*.py", "*.cc") for path in folder.rglob(kind)]
    return [*DOCUMENTS, *code]


def test_what_pip_is_told_to_install_is_on_its_index() -> None:
    """Ringar is not; its checkout and its wheel are files."""
    commands = []
    for path in sources():
        # A command may go on in the next line of a document.
        for words in re.findall(
            r"pip install((?:\s+(?:'[^'\n]*'|[-\w.=<>\[\],]+))+)", path.read_text()
        ):
            if re.search(r"(?:^|\s)'?ringar(?![\w-]*\.whl|-)", words):
                commands.append(f"{name(path)}: pip install{words}")
    assert commands == ["docs/installation.md: pip install ringar"]
