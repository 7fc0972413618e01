from __future__ import annotations

from pathlib import Path

import pytest

from ringar.launchers.errors import UsageError
from ringar.launchers.start.ssh import Agent, agent
from tests.launchers.programs import write


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    for name in ("ssh", "rsh", "blaunch", "pbs_tmrsh"):
        write(tmp_path / name, "exit 1")
    return {"PATH": str(tmp_path)}


def test_ssh_asks_no_questions(environ: dict[str, str], tmp_path: Path) -> None:
    options = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
    assert agent("", None, None, environ) == Agent((f"{tmp_path}/ssh",), options)


def test_another_program_gets_only_port_and_key(environ: dict[str, str], tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch()
    ssh = agent("rsh -K", 2222, key, environ)
    assert ssh == Agent((f"{tmp_path}/rsh", "-K"), ("-p", "2222", "-i", str(key)))
    assert str(ssh) == f"{tmp_path}/rsh -K -p 2222 -i {key}"


def test_which_program(environ: dict[str, str], tmp_path: Path) -> None:
    def name(command: str = "", scheduler: str | None = None, variable: str = "") -> str:
        ssh = agent(command, None, None, {**environ, "RINGAR_SSH": variable}, scheduler)
        return Path(ssh.program[0]).name

    assert name() == "ssh"
    assert name(scheduler="LSF") == "blaunch"
    assert name(scheduler="PBS") == "pbs_tmrsh"
    assert name(variable="rsh", scheduler="LSF") == "rsh"
    assert name("ssh", variable="rsh", scheduler="LSF") == "ssh"
    (tmp_path / "blaunch").unlink()
    assert name(scheduler="LSF") == "ssh"


def test_the_other_shell_sees_words_quoted() -> None:
    assert Agent(("ssh",), ("-p", "1")).command("h", ["a b", "$c"]) == [
        *("ssh", "-p", "1", "h", "'a b' '$c'")
    ]


def test_errors(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no-such: expected a program that runs commands on other"):
        agent("no-such", None, None, environ)
    with pytest.raises(UsageError, match="-i: expected a file with a private key, received '/no"):
        agent("", None, Path("/no/key"), environ)
    key = tmp_path / "my key"
    key.touch()
    with pytest.raises(UsageError, match="without blanks, received '.*my key'"):
        agent("", None, key, environ)
