"""Options from a file, and the completion of shells."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ringar.launchers.command_line import completion, config_file, options
from ringar.launchers.command_line.cli import main
from ringar.launchers.errors import UsageError
from tests.launchers.test_cli import run

TOML = """
num-proc = 4
deadline = 60
prefix = false
verbose = true
dry-run = false
module = true
network-interface = ["eth0", "eth1"]
mpi-args = ["--mca", "btl", "tcp,self"]
command = ["package.train", "--epochs", "3"]
[hosts]
h1 = 2
h2 = 4
[x]
A = "1 2"
B = 3
"""
YAML = """
np: 4
deadline: 60
no-prefix: true
verbose: true
dry_run: false
module: true
network-interface: [eth0, eth1]
mpi-args: --mca btl tcp,self
command: package.train --epochs 3
H: h1:2,h2:4
x: {A: 1 2, B: 3}
"""
LINE = [
    *("-np=4", "--deadline=60", "--no-prefix", "--verbose", "-m", "--network-interface=eth0"),
    *("--network-interface=eth1", "--mpi-args=--mca btl tcp,self", "-H=h1:2,h2:4"),
    *("-x", "A=1 2", "-x", "B=3", "--", "package.train", "--epochs", "3"),
]


def without_sources(arguments: list[str]) -> Mapping[str, Any]:
    parsed = vars(config_file.parse(arguments))
    return {name: value for name, value in parsed.items() if name not in ("sources", "config")}


@pytest.mark.parametrize(("name", "text"), [("job.toml", TOML), ("job.yml", YAML)])
def test_a_file_stands_for_a_command_line(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    expected = {**without_sources(LINE), "command": LINE[-3:]}
    assert without_sources(["--config", str(path)]) == expected


def test_the_command_line_wins(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.toml"
    path.write_text(
        'np = 4\nhosts = "h1:9"\nmodule = true\nstall-warning = 5\ncommand = "package"\n'
        "network-interface = 'eth0'\nx = ['A=1']"
    )
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:3\n")
    line = ["--config", str(path), "-n", "2", "--hostfile", str(hosts), "-x", "A=2", "--dry-run"]
    parsed = config_file.parse([*line, "true"])
    assert options.request(parsed).num_proc == 2
    assert (parsed.hosts, parsed.module, parsed.command) == ((), False, ["true"])
    assert parsed.exports == ["A=1", "A=2"]  # the last one counts
    path.write_text(path.read_text().replace("network-interface = 'eth0'", ""))
    assert main([*line, "true"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [text for text in lines if text.startswith("#")] == [
        "# --num-proc 2: from the command line",
        f"# -x A=1 A=2: from {path} and the command line",
        f"# --hostfile {hosts}: from the command line",
        f"# --stall-warning 5.0: from {path}",
        "# command true: from the command line",
    ]
    assert "A=2" in lines[5]
    assert len(lines) == 7


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "deadlin = 5", "a.toml: unknown option deadlin; did you mean deadline?"),
        ("a.toml", "deadline = 0", "a.toml: argument --deadline/--stall-check"),
        ("a.toml", "np = 'two'", "a.toml: -np: expected the number of ranks"),
        ("a.toml", "np = [2, 3]", "a.toml: np: expected one N, received [2, 3]"),
        ("a.toml", "np = true", "a.toml: np: expected N, received True"),
        ("a.toml", "verbose = 1", "a.toml: verbose: expected true or false, received 1"),
        ("a.toml", "version = true", "a.toml: expected --version on the command line only"),
        ("a.toml", "command = 5", "a.toml: command: expected words or a list, received 5"),
        ("a.toml", "np = ", "a.toml: expected TOML, received: "),
        ("a.yaml", "- np", "a.yaml: expected names of options with values, received ['np']"),
        ("a.yaml", "a: [", "a.yaml: expected YAML, received: "),
        ("a.json", "{}", "--config: expected a file *.toml, *.yaml or *.yml, received "),
        ("a.toml", None, "a.toml': No such file or directory"),
    ],
)
def test_bad_files_are_refused(
    name: str, text: str | None, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    assert run("--config", str(path), "true") == 2
    error = capfd.readouterr().err
    assert error.startswith("ringarrun: error: ")
    assert message in error
    assert error.count("\n") == 1


def test_absent_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for suffix in ("toml", "yaml"):
        (tmp_path / f"a.{suffix}").write_text("")
    for name in ("yaml", "tomllib", "tomli", "shtab"):
        monkeypatch.setitem(sys.modules, name, None)  # as where it is absent
    with pytest.raises(UsageError, match=r"package tomli to read .* pip install tomli"):
        config_file.read(tmp_path / "a.toml")
    with pytest.raises(UsageError, match=r"package pyyaml to read .* pip install pyyaml"):
        config_file.read(tmp_path / "a.yaml")
    with pytest.raises(UsageError, match=r"the package shtab, .* pip install shtab"):
        completion.script(options.parser(), "bash")


def test_all_repeated_options_are_known() -> None:
    actions = options.parser()._actions
    repeated = {a.dest for a in actions if isinstance(a, argparse._AppendAction)}
    assert repeated == config_file._REPEATED


def complete(*words: str) -> list[str]:
    """Returns what bash offers for the last of `words`."""
    script = (
        f"{completion.script(options.parser(), 'bash')}\n"
        'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_ringarrun; echo "${COMPREPLY[@]}"'
    )
    job = subprocess.run(
        ["bash", "-c", script, "bash", "ringarrun", *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return job.stdout.split()


def test_bash_completes_options_and_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    assert complete("--elastic") == ["--elastic-timeout", "--elastic-dir"]
    assert complete("-np", "2", "--bind-to", "") == ["core", "numa", "none"]
    assert complete("-np", "2", "tr") == ["train.py"]
    assert complete("--hostfile", "t") == ["train.py"]


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_each_shell_has_a_completion(shell: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--print-completion", shell) == 0
    text = capfd.readouterr().out
    assert "ringarrun" in text
    assert "max-failures" in text
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, text=True, timeout=30, check=True)
