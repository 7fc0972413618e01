"""Which hosts an elastic job has now, by a script and by a host file that changes."""

from __future__ import annotations

import re
import signal
import socket
import time
from pathlib import Path

import pytest

from ringar.launchers.elastic import discovery as discovery_module
from ringar.launchers.elastic.discovery import Discovery
from ringar.launchers.errors import UsageError
from tests.launchers.helpers import Launcher, launch, shell, wait_until
from tests.launchers.programs import write

HOST_NAME = socket.gethostname()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask scripts again at once."""
    monkeypatch.setattr(discovery_module, "_EVERY", 0.0)


def script(folder: Path, text: str) -> str:
    """Make a script and return its path."""
    write(folder / "hosts.sh", text)
    return str(folder / "hosts.sh")


def answers(folder: Path, *texts: str) -> str:
    """Make a script that answers with each text in turn, and with the last one from then on."""
    cases = "".join(f"{n}) {text} ;;\n" for n, text in enumerate(texts[:-1]))
    count = f"{folder}/count"
    return script(
        folder,
        f"n=$(cat {count} 2>/dev/null || echo 0); echo $((n + 1)) > {count}\n"
        f"case $n in\n{cases}*) {texts[-1]} ;;\nesac",
    )


def pairs(discovery: Discovery) -> list[tuple[str, int]]:
    """The hosts that were found last."""
    return [(host.name, host.slots) for host in discovery.hosts or ()]


def look(discovery: Discovery) -> bool:
    """Look once."""
    discovery.look(time.monotonic())
    return discovery.hosts is not None or bool(discovery.trouble)


def test_a_host_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(f"localhost slots=2\n{HOST_NAME} slots=1\nelsewhere slots=8\n")
    discovery = Discovery(None, path)
    discovery.look(0.0)
    assert discovery.hosts is None  # a part of it may be written
    discovery.look(1.0)
    all_hosts = [("localhost", 2), (HOST_NAME, 1), ("elsewhere", 8)]
    assert pairs(discovery) == all_hosts
    path.write_text("localhost slots=4\n")
    discovery.look(1.5)
    discovery.look(1.9)  # once a second
    discovery.look(2.0)
    assert pairs(discovery) == all_hosts
    discovery.look(3.0)
    assert pairs(discovery) == [("localhost", 4)]
    path.unlink()
    discovery.look(4.0)
    assert str(path) in discovery.trouble
    assert pairs(discovery) == [("localhost", 4)]
    discovery.close()


@pytest.mark.usefixtures("often")
def test_an_answer_counts_when_it_is_given_twice(tmp_path: Path) -> None:
    """In any order; an empty answer, another word and an error once are no news."""
    hosts = [f"echo {HOST_NAME}:3; echo elsewhere:9", f"echo elsewhere:9; echo {HOST_NAME}:3"]
    glitches = ["true", *hosts, "echo null", *hosts, "exit 1", hosts[0], "true", "true"]
    discovery, host_lists = Discovery(answers(tmp_path, *glitches), None), list[object]()

    def is_empty() -> bool:
        look(discovery)
        if discovery.hosts is not None and discovery.hosts not in host_lists:
            host_lists.append(discovery.hosts)
        return discovery.hosts == ()

    wait_until(is_empty, "two empty answers")
    assert [str(hosts) for hosts in host_lists] == [str(host_lists[0]), "()"]
    assert discovery.trouble == ""
    discovery.close()


@pytest.mark.usefixtures("often")
def test_a_script_may_print_what_a_host_file_has(tmp_path: Path) -> None:
    """Comments, ends of lines of other systems, a line for each slot."""
    lines = r"# of today\n\nh1 slots=3\r\nh2:2\r\nh3\nh3\n"
    discovery = Discovery(script(tmp_path, f"printf '{lines}'"), None)
    wait_until(lambda: look(discovery), "the script")
    assert (pairs(discovery), discovery.trouble) == ([("h1", 3), ("h2", 2), ("h3", 2)], "")
    discovery.close()


@pytest.mark.usefixtures("often")
def test_what_is_wrong_with_a_script_is_said(tmp_path: Path) -> None:
    for text, trouble in (
        ("exit 3", "expected exit code 0 of"),
        ("echo h1; echo h2:x", "--host-discovery-script:2: expected"),
        ("yes", "more than 1048576 bytes of output"),
    ):
        discovery = Discovery(script(tmp_path, text), None)
        wait_until(lambda: look(discovery), "the script")  # noqa: B023
        assert trouble in discovery.trouble
        assert discovery.hosts is None
        discovery.close()
    discovery = Discovery(str(tmp_path / "none"), None)
    with pytest.raises(UsageError, match="cannot run"):
        discovery.wait(1, 600.0)
    discovery.close()


@pytest.mark.usefixtures("often")
def test_a_script_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    """At its end, when its time is over, and with the job."""
    child = f"sleep 1000 & echo $! >> {tmp_path}/children"

    def children() -> list[Path]:
        if not (tmp_path / "children").exists():
            return []
        return [Path("/proc", pid) for pid in (tmp_path / "children").read_text().split()]

    def lives(process: Path) -> bool:
        try:
            return bool((process / "cmdline").read_bytes())  # a zombie has none
        except OSError:
            return False

    def are_gone() -> bool:
        return not any(map(lives, children()))

    discovery = Discovery(script(tmp_path, f"{child}; echo {HOST_NAME}"), None)
    wait_until(lambda: look(discovery) and discovery.hosts, "two answers")
    discovery.close()
    wait_until(are_gone, "the end of what a script has left")
    discovery = Discovery(script(tmp_path, f"{child}; wait"), None)
    for number in (1, 2):
        begin, count = 100.0 * number, len(children())
        discovery.look(begin)
        wait_until(lambda: len(children()) > count, "the script")  # noqa: B023
        if number == 1:
            discovery.look(begin + 31.0)
            assert "within 30 s, received -9" in discovery.trouble
        else:
            discovery.close()
        wait_until(are_gone, "the end of a script that hangs")


@pytest.mark.job
def test_a_job_waits_for_its_first_hosts(tmp_path: Path) -> None:
    """An error and too few slots come first; then it begins with fewer ranks than `-np`."""
    program = answers(tmp_path, "exit 1", "true", *["echo null"] * 2, "echo localhost:2")
    options = ("--min-np", "2", "-np", "3", "--max-np", "4", "--host-discovery-script", program)
    result = launch(*options, *shell("echo began"))
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["[0] began", "[1] began"]
    notice = r"expected exit code 0 .*, received 1; asking again for up to 600 s"
    assert re.search(notice, result.stderr), result.stderr
    assert "expected 2 slots (--min-np) or more, received 1; asking again" in result.stderr


@pytest.mark.job
def test_a_job_without_hosts_ends_in_time_or_when_it_is_told_to(tmp_path: Path) -> None:
    program = script(tmp_path, "sleep 1000 & true")
    options = ("--min-np", "2", "--host-discovery-script", program, *shell("echo began"))
    result = launch("--elastic-timeout", "2", *options)
    assert result.returncode == 1
    error = "expected 2 slots (--min-np) or more, received 0, for 2 s (--elastic-timeout); nothing"
    assert error in result.stderr
    with Launcher(*options) as launcher:
        assert launcher.process.stderr is not None
        assert "asking again" in launcher.process.stderr.readline()
        launcher.signal(signal.SIGTERM)
        result = launcher.finish()
    assert (result.returncode, result.stdout) == (143, "")
    assert result.stderr.endswith("stopped on SIGTERM; nothing was started\n")


@pytest.mark.job
@pytest.mark.parametrize("option", ["-H", "--hostfile"])
def test_a_host_that_does_not_answer_yet_is_asked_again(option: str, tmp_path: Path) -> None:
    """With `-H` only if the job can start without it; see also tests/hosts/test_elastic.py."""
    write(
        tmp_path / "ssh",
        f"shift $(($# - 2)); echo > {tmp_path}/$1.$$\n"
        f'ls {tmp_path}/h9.* | sed 1,2d | grep -q . && exec sh -c "$2"\necho down >&2; exit 255',
    )
    (tmp_path / "hosts").write_text("h9 slots=2\n")
    named = {"-H": "h9:2", "--hostfile": str(tmp_path / "hosts")}[option]
    options = ("--min-np", "2", option, named, "--ssh-command", str(tmp_path / "ssh"))
    result = launch(*options, *shell("echo began"))
    assert "1 of 1 host cannot take part" in result.stderr
    assert "h9: cannot be reached, or gives no answer: down" in result.stderr
    if option == "-H":
        assert (result.returncode, result.stdout) == (1, "")
    else:
        assert "cannot take part; asking again for up to 600 s (--elastic-timeout)" in result.stderr
        assert sorted(result.stdout.splitlines()) == ["[0] began", "[1] began"]
        assert result.returncode == 0
