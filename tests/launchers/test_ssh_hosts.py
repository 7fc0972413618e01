"""A real job over a real ssh: an sshd of our own on two more addresses of this host."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launchers import test_mpirun
from tests.launchers.helpers import launch, shell
from tests.launchers.programs import write

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def obstacle() -> str:
    """Why there can be no job over ssh here; "" if there can."""
    if SSHD is None or not shutil.which("ssh") or not shutil.which("ssh-keygen"):
        return "ssh and sshd (openssh-server) are not installed"
    if os.geteuid() != 0:
        return "sshd is started as root only"
    return test_mpirun.obstacle()


pytestmark = [pytest.mark.job, pytest.mark.skipif(bool(obstacle()), reason=obstacle() or "-")]


class Server:
    """An sshd: its port, the key that it lets in, and an ssh that knows it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.2", 0)) as free:
            self.port = free.getsockname()[1]
        for name in ("key", "host"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)],
                check=True,
                timeout=30,
            )
        public = (folder / "host.pub").read_text()
        names = (f"[127.0.0.{i}]:{self.port}" for i in (2, 3))
        (folder / "known").write_text("".join(f"{name} {public}" for name in names))
        (folder / "config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.2\nListenAddress 127.0.0.3\n"
            f"HostKey {folder}/host\nAuthorizedKeysFile {folder}/key.pub\nStrictModes no\n"
            f"UsePAM no\nPermitRootLogin prohibit-password\nPidFile none\n"
        )
        # By this name it is ssh for the launcher, and gets all options that ssh gets.
        (folder / "bin").mkdir()
        command = f'exec {shutil.which("ssh")} -F none -o UserKnownHostsFile={folder}/known "$@"'
        write(folder / "bin/ssh", command)
        self.environ = {"PATH": f"{folder}/bin:{os.environ['PATH']}"}
        self.options = ("-p", str(self.port), "-i", str(folder / "key"))

    def wait(self) -> None:
        """Wait until it answers."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.3", self.port), 1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError((self.folder / "log").read_text())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    sshd = Server(tmp_path_factory.mktemp("sshd"))
    # A path that sshd is built with. It stays: another process of these tests may need it, too.
    Path("/run/sshd").mkdir(exist_ok=True)
    assert SSHD is not None
    with open(sshd.folder / "log", "wb") as log:
        process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(sshd.folder / "config")], stderr=log
        )
    try:
        sshd.wait()
        yield sshd
    finally:
        process.terminate()
        process.wait(20)


def test_ranks_on_hosts_behind_ssh(server: Server) -> None:
    hosts = ("-H", "localhost:1,127.0.0.2:2,127.0.0.3:1")
    show = shell(f"echo {test_mpirun.RANK} $MY_A $SSH_CONNECTION")
    result = launch(*hosts, *server.options, "-x", "MY_A=1,2", *show, env=server.environ)
    assert result.returncode == 0, result.stderr
    lines = [line.split() for line in sorted(result.stdout.splitlines())]
    assert [line[:3] for line in lines] == [[f"[{r}]", str(r), "1,2"] for r in range(4)]
    connected = [line[5] if len(line) > 5 else "" for line in lines]
    assert connected == ["", "127.0.0.2", "127.0.0.2", "127.0.0.3"]


def test_hosts_that_do_not_answer_or_let_nobody_in(server: Server, tmp_path: Path) -> None:
    program = shell(f"touch {tmp_path}/started")
    hosts = ("-H", "localhost:1,127.0.0.2:2,127.0.0.4:1")
    result = launch(*hosts, *server.options, *program, env=server.environ)
    assert result.returncode == 1
    first, second = result.stderr.splitlines()
    assert "1 of 3 hosts cannot take part" in first
    assert second.startswith("  127.0.0.4: cannot be reached, or gives no answer: ssh: connect to")
    (tmp_path / "other").write_text("no key")
    (tmp_path / "other").chmod(0o600)
    options = ("-p", str(server.port), "-i", str(tmp_path / "other"))
    environ = {**server.environ, "SSH_AUTH_SOCK": ""}
    result = launch("-H", "127.0.0.2:2", *options, *program, env=environ)
    assert result.returncode == 1
    assert "Permission denied (publickey" in result.stderr
    assert not (tmp_path / "started").exists()
