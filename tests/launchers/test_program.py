"""What the ranks run: scripts and modules with this Python, and all other programs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ringar.launchers.errors import UsageError
from ringar.launchers.plan.program import Program, module_fault, resolve
from tests.launchers.helpers import launch

PATH = "/usr/bin:/bin"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with scripts, modules, packages and namespaces in it."""
    for name in (
        *("train.py", "notes.txt", "good/__init__.py", "good/__main__.py", "good/train.py"),
        *("space/inner/run.py", "space/main/__main__.py", "scripts/other.py"),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("import sys; print(sys.argv[1:], sys.path[0], sys.executable)")
    (tmp_path / "good/__init__.py").write_text("")
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap/__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "trap/run.py").touch()
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_scripts_run_with_this_python(folder: Path) -> None:
    for name in ("train.py", "./train.py", "scripts/other.py", str(folder / "train.py")):
        program = resolve([name, "-m", "x"], False, PATH)
        assert program == Program((sys.executable, name, "-m", "x"), script=name)
    # As with torchrun, and unlike in a shell, whether it can be executed or not.
    (folder / "train.py").chmod(0o755)
    assert resolve(["./train.py"], False, PATH).script == "./train.py"


def test_programs_run_as_they_are(folder: Path) -> None:
    for words in (["sh", "train.py"], ["./tool"], ["/bin/sh", "-c", "true"]):
        assert resolve(words, False, PATH) == Program(tuple(words))
    assert resolve(["tool"], False, str(folder)) == Program(("tool",))
    # A script that is not here may be a program in PATH.
    (folder / "tool").rename(folder / "scripts/tool.py")
    assert resolve(["tool.py"], False, str(folder / "scripts")) == Program(("tool.py",))


def test_modules_run_with_this_python(folder: Path) -> None:
    modules = ("train", "good", "good.train", "space.inner.run", "space.main", "scripts.other")
    for name in (*modules, "trap.run", "json.tool", "ringar.launchers", "sys"):
        program = resolve([name, "-x"], True, PATH)
        assert program == Program((sys.executable, "-m", name, "-x"), module=name)


def test_modules_are_looked_up_in_the_pythonpath_of_the_ranks(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert resolve(["good.train"], True, PATH, f"/none:{folder}").module == "good.train"
    assert module_fault("good.train", [str(folder)]) == ""
    with pytest.raises(UsageError, match="there is no good"):
        resolve(["good.train"], True, PATH)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("nowhere.py", 127, "expected a Python script to run, but there is no such file"),
        ("trian.py", 127, "there is no such file; did you mean train.py?"),
        ("scripts/othr.py", 127, "there is no such file; did you mean scripts/other.py?"),
        ("no/such.py", 127, "expected a Python script to run, but there is no such file"),
        ("notes.txt", 126, "a Python script (.py) to run, but this file is not executable; make"),
        ("./notes.txt", 126, "a Python script (.py) to run, but this file is not executable"),
        ("good", 126, "expected a program to run, received a directory"),
        ("tool", 127, "it is found nowhere in PATH; did you mean ./tool?"),
        ("./tol", 127, "expected a program to run, but it is no such file"),
        ("no-such", 127, "expected a program to run, but it is found nowhere in PATH"),
        ("-m no", 127, "expected a Python module, but there is no no"),
        ("-m godo", 127, "there is no godo; did you mean good?"),
        ("-m good.trian", 127, "there is no good.trian; did you mean good.train?"),
        ("-m train.deeper", 127, "there is no train.deeper"),
        ("-m train.py", 127, "received the name of a file; did you mean -m train or train.py?"),
        ("-m good/train.py", 127, "did you mean -m good.train or good/train.py?"),
        ("-m space.inner", 127, "is a package without space.inner.__main__"),
        ("-m trap", 127, "is a package without trap.__main__"),
        ("-m a..b", 127, "there is no a"),
    ],
)
def test_what_cannot_run(folder: Path, words: str, code: int, message: str) -> None:
    name = words.removeprefix("-m ")
    with pytest.raises(UsageError) as caught:
        resolve([name, "x"], name != words, PATH)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{words}: ")
    assert caught.value.code == code
    if "did you mean" not in message:
        assert "did you mean" not in str(caught.value)


def test_a_missing_python_may_be_a_python3(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\n")
    (tmp_path / "python3").chmod(0o755)
    with pytest.raises(UsageError, match=r"python: .*nowhere in PATH; did you mean python3\?"):
        resolve(["python"], False, str(tmp_path))


@pytest.mark.job
def test_jobs_of_scripts_and_modules(folder: Path) -> None:
    for words, where in (
        (["scripts/other.py"], folder / "scripts"),
        (["-m", "good"], folder),
        ([sys.executable, "scripts/other.py"], folder / "scripts"),
    ):
        result = launch("-np", "2", "--no-prefix", *words, "-np", "a b", "-m")
        assert result.stdout == f"['-np', 'a b', '-m'] {where} {sys.executable}\n" * 2
        assert (result.returncode, result.stderr) == (0, "")
