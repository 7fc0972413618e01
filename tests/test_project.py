"""The files around the code, and the places that say the same thing twice."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from tests.plugin.jobs import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, GROUPS = PYPROJECT["project"], PYPROJECT["dependency-groups"]
EXTRAS = PROJECT["optional-dependencies"]


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def test_the_workflow_has_the_steps_of_the_script() -> None:
    script = (ROOT / ".ci/run").read_text()
    steps = set(re.findall(r"^step (\S+)$", script, re.MULTILINE)) - {"all", "test-ranks"}
    (beside,) = re.findall(r"^make (.*) TENSORFLOW=([\d.]+) >", script, re.MULTILINE)
    (ranks,) = re.findall(r"^RANKS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    expected = steps | {*beside[0].split(), *(f"test-ranks-{number}" for number in ranks.split())}
    job = read(".github/workflows/ci.yml")["jobs"]["step"]
    jobs = job["strategy"]["matrix"]["include"]
    assert {step for entry in jobs for step in entry["steps"].split()} == expected
    assert f"== '{beside[0]}' && '{beside[1]}'" in job["env"]["TENSORFLOW"]
    assert [step["run"] for step in job["steps"] if "run" in step] == [
        ".ci/run ${{ matrix.steps }}"
    ]
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert {entry["python"] for entry in jobs} == set(named)
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_the_script_runs_the_steps_that_it_is_given(tmp_path: Path) -> None:
    script = tmp_path / ".ci" / "run"
    script.parent.mkdir()
    shutil.copy(ROOT / ".ci/run", script)
    (tmp_path / "Makefile").write_text("lint docs:\n\t@echo made $@\n")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("g++", "aarch64-linux-gnu-g++", "ccache", "tc"):
        (tools / name).symlink_to("/bin/true")
    (tools / "python3").symlink_to(sys.executable)
    job = subprocess.run(
        [script, "lint", "docs"],
        env={"PATH": f"{tools}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert job.returncode == 0, job.stderr
    assert re.findall("made (.*)", job.stdout) == ["lint", "docs"]
    assert re.findall(r"\d s +(.*)", job.stdout) == ["make lint", "make docs", "in all"]


def test_hooks_of_commits_have_the_versions_of_lint() -> None:
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        assert set(hook["additional_dependencies"]) <= set(GROUPS["lint"]), hook["id"]
        assert hook["entry"].split()[0] in (ROOT / "Makefile").read_text()


def recipe() -> Any:
    """Returns the recipe of conda, with the functions of conda-build in their simplest form."""

    def load_file_regex(load_file: str, regex_pattern: str, from_recipe_dir: bool) -> Any:
        assert from_recipe_dir
        return re.search(regex_pattern, (ROOT / "conda" / load_file).read_text())

    text = jinja2.Template((ROOT / "conda/meta.yaml").read_text()).render(
        load_file_regex=load_file_regex,
        compiler=lambda language: f"compiler-{language}",
        stdlib=lambda language: f"stdlib-{language}",
        PYTHON="python",
    )
    return yaml.safe_load(text)


def without_spaces(requirements: list[str]) -> set[str]:
    return {re.sub(r"[\s;].*", "", text.replace(" ", "")) for text in requirements}


def test_the_recipe_of_conda_has_the_requirements_of_the_package() -> None:
    parsed = recipe()
    version = re.search(r'__version__ = "(.*)"', (ROOT / "ringar/version.py").read_text())
    assert version is not None
    assert parsed["package"] == {"name": "ringar", "version": version[1]}
    requirements = {name: without_spaces(v) for name, v in parsed["requirements"].items()}
    python = f"python{PROJECT['requires-python']}"
    assert requirements["run"] == {python, *without_spaces(PROJECT["dependencies"])}
    assert requirements["run_constrained"] == set(EXTRAS["tensorflow"])
    tools = requirements["host"] | requirements["build"]
    assert tools >= without_spaces(GROUPS["build"]) - {"build>=1.0", "auditwheel>=6.2,<7"}
    scripts = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert parsed["build"]["entry_points"] == scripts


def test_the_citation_names_the_package() -> None:
    citation = read("CITATION.cff")
    assert citation["license"] == PROJECT["license"]
    assert [author["name"] for author in citation["authors"]] == [
        author["name"] for author in PROJECT["authors"]
    ]


def container_program() -> str | None:
    """Returns the program that builds images here: it is installed, and its service answers."""
    for program in filter(shutil.which, ("docker", "podman")):
        if subprocess.run([program, "info"], capture_output=True, check=False).returncode == 0:
            return program
    return None


def test_the_image_installs_extras_that_exist() -> None:
    lines = (ROOT / "Dockerfile").read_text()
    chosen = {name for group in re.findall(r"extras=(\S+) ", lines) for name in group.split(",")}
    chosen |= set(re.findall(r"\$\{extras\},(\w+)\]", lines))
    assert chosen == {"tensorflow", "gpu-test", "launcher"}
    assert chosen <= EXTRAS.keys()
    ignored = set((ROOT / ".dockerignore").read_text().split())
    sources = {
        "ringar",
        "launchers",
        "tf_ops",
        "setup.py",
        "pyproject.toml",
        "README.md",
        "LICENSE",
    }
    assert not ignored & sources


@pytest.mark.slow
@pytest.mark.job
@pytest.mark.deadline(1800)
@pytest.mark.skipif(container_program() is None, reason="no Docker or Podman that answers")
def test_the_image_runs_two_ranks() -> None:
    program = container_program()
    assert program is not None
    build = [program, "build", "--tag", "ringar-test", "."]
    subprocess.run(build, cwd=ROOT, timeout=1500, check=True)
    script = "import ringar; ringar.init(); print(ringar.size())"
    ranks = ["ringarrun", "-np", "2", "--no-prefix", "python", "-c", script]
    job = subprocess.run(
        [program, "run", "--rm", "ringar-test", *ranks],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert job.stdout.split() == ["2", "2"]


@pytest.mark.job
def test_the_source_archive_has_every_file_of_the_repository(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("needs a repository, to list its files")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    files = {name for name in listed if (ROOT / name).exists()}
    for name in files:
        copy = tmp_path / "checkout" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy)
    command = [sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(tmp_path)]
    subprocess.run(command, cwd=tmp_path / "checkout", timeout=100, check=True)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert len(files) > 1000
    assert files <= packed, sorted(files - packed)
