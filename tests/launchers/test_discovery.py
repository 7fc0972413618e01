"""Which hosts an elastic job has now, by a script and by a host file that changes."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from ringar.launchers.discovery import Discovery
from tests.launchers.helpers import wait_until
from tests.launchers.programs import write

HERE = socket.gethostname()


def script(folder: Path, text: str) -> str:
    """Make a script and return its path."""
    write(folder / "hosts.sh", text)
    return str(folder / "hosts.sh")


def found(discovery: Discovery) -> list[tuple[str, int]]:
    """The hosts that were found last."""
    return [(host.name, host.slots) for host in discovery.hosts or ()]


def look(discovery: Discovery) -> bool:
    """Look once, later than the last time."""
    discovery.look(time.monotonic() + 2)
    return discovery.hosts is not None or bool(discovery.trouble)


def test_a_host_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(f"localhost slots=2\n{HERE} slots=1\nelsewhere slots=8\n")
    discovery = Discovery(None, path)
    discovery.look(0.0)
    assert found(discovery) == [("localhost", 2), (HERE, 1), ("elsewhere", 8)]
    path.write_text("localhost slots=4\n")
    discovery.look(0.5)
    assert len(found(discovery)) == 3  # once a second
    discovery.look(1.5)
    assert found(discovery) == [("localhost", 4)]
    path.unlink()
    discovery.look(3.0)
    assert str(path) in discovery.trouble
    assert found(discovery) == [("localhost", 4)]
    discovery.close()


def test_a_script_tells_the_hosts(tmp_path: Path) -> None:
    lines = f"echo {HERE}:3; echo localhost; echo elsewhere:9"
    discovery = Discovery(script(tmp_path, lines), None)
    wait_until(lambda: look(discovery), "the script")
    assert (found(discovery), discovery.trouble) == (
        [(HERE, 3), ("localhost", 1), ("elsewhere", 9)],
        "",
    )
    discovery.close()


def test_what_is_wrong_with_a_script_is_said(tmp_path: Path) -> None:
    for text, told in (
        ("exit 3", "expected exit code 0 of"),
        ("echo h1:x", "--host-discovery-script: "),
    ):
        discovery = Discovery(script(tmp_path, text), None)
        wait_until(lambda: look(discovery), "the script")  # noqa: B023
        assert told in discovery.trouble
        assert discovery.hosts is None
        discovery.close()
    discovery = Discovery(str(tmp_path / "none"), None)
    discovery.look(0.0)
    assert "cannot run" in discovery.trouble
    discovery.close()
