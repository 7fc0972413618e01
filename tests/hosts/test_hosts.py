"""The hosts themselves: what they have of their own, their rate, and that nothing of them stays."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts import JUMBO_MTU, Hosts, Traffic, stream, unavailable
from tests.plugin.jobs import ROOT

pytestmark = [pytest.mark.job, pytest.mark.usefixtures("can_make_hosts")]

MIB = 1 << 20


def test_each_has_its_own_name_and_address(four: Hosts) -> None:
    program = "import socket; print(socket.gethostname(), socket.gethostbyname('host3'))"
    for host in four:
        assert host.run(sys.executable, "-c", program).stdout.split() == [host.name, "10.213.45.4"]
    assert socket.gethostname() not in {host.name for host in four}


def test_each_reaches_each(four: Hosts) -> None:
    for source in four:
        for sink in four:
            if source is not sink:
                assert stream.measure(source, sink, 1000) > 0


def test_shared_memory_is_the_host_s_own(two: Hosts) -> None:
    name = f"test-of-hosts-{os.getpid()}"
    two[0].run("sh", "-c", f"echo ours > /dev/shm/{name}")
    assert name in two[0].shared_memory()
    assert two[0].run("cat", f"/dev/shm/{name}").stdout == "ours\n"
    assert name not in two[1].shared_memory()
    assert not Path("/dev/shm", name).exists()


def test_files_are_shared_and_the_folder_is_kept(two: Hosts, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("text")
    assert two[1].run("cat", str(tmp_path / "here")).stdout == "text"
    assert two[1].run("pwd").stdout.strip() == os.getcwd()


@pytest.mark.alone
@pytest.mark.parametrize("mtu", [1500, JUMBO_MTU])
def test_the_rate_is_exact(mtu: int) -> None:
    """Never more; and as much, unless the machine was busy with something else at each attempt."""
    count = 24 * MIB
    with Hosts(2, rate_mbit=200, mtu=mtu) as hosts:
        before, received = hosts[0].traffic(), hosts[1].counters()["rx_bytes"]
        rates = [stream.measure(hosts[0], hosts[1], count)]
        traffic = hosts[0].traffic() - before
        received = hosts[1].counters()["rx_bytes"] - received
        while rates[-1] < 0.98 * hosts.payload_rate and len(rates) < 5:
            rates.append(stream.measure(hosts[0], hosts[1], count))
    assert max(rates) == pytest.approx(hosts.payload_rate, rel=0.02), rates
    assert traffic.payload == pytest.approx(count, abs=2000)  # what opens and closes a stream
    assert count < received <= traffic.bytes < 1.05 * count


@pytest.mark.alone
def test_a_rate_holds_for_each_direction(can_make_hosts: None) -> None:
    """Links are full duplex, and what one host sends takes nothing from its neighbor's rate."""
    with Hosts(2, rate_mbit=160) as hosts:
        python = [sys.executable, "-m", "tests.hosts.stream"]
        receiver = hosts[0].popen(*python, "receive", stdout=subprocess.PIPE)
        assert receiver.stdout is not None
        port = receiver.stdout.readline().strip()
        with hosts[1].popen(*python, "send", "host0", port, str(16 * MIB)):
            forth = stream.measure(hosts[0], hosts[1], 12 * MIB)
        count, seconds = receiver.communicate(timeout=20)[0].split()
    back = int(count) / float(seconds)
    assert max(forth, back) < 1.1 * hosts.payload_rate
    # A rate for both together would be at most one; a busy machine takes something of two.
    assert forth + back > 1.3 * hosts.payload_rate


def test_payload_of_traffic() -> None:
    """Two full frames and an acknowledgement, without their headers."""
    traffic = Traffic(2 * 1514 + 66, 3)
    assert traffic.payload == 2 * 1448
    assert traffic - Traffic(1514 + 66, 2) == Traffic(1514, 1)


def test_a_host_s_processes_are_found_and_killed(two: Hosts) -> None:
    assert two[0].processes() == []
    running = [host.popen("sh", "-c", "sleep 100 & sleep 101") for host in two]
    wait_until(lambda: all(len(host.processes()) >= 3 for host in two))
    assert two[0].kill() >= 3
    assert two[0].processes() == []
    assert len(two[1].processes()) >= 3
    assert running[0].wait(5) != 0
    assert running[1].poll() is None
    two[1].kill()
    running[1].wait(5)


def test_a_link_is_cut_and_restored(two: Hosts) -> None:
    two[1].cut()
    program = "import socket; socket.create_connection(('host1', 9), timeout=1)"
    failed = two[0].run(sys.executable, "-c", program, check=False)
    assert "TimeoutError" in failed.stderr or "No route to host" in failed.stderr
    two[1].restore()
    # An answer to the question who has that address may have been given up on for a second.
    wait_until(lambda: "refused" in two[0].run(sys.executable, "-c", program, check=False).stderr)


def test_the_agent_is_used_as_ssh_is(two: Hosts) -> None:
    def agent(*words: str) -> subprocess.CompletedProcess[str]:
        return two[0].run(str(two.agent), *words, check=False, env={**os.environ, "OURS": "1"})

    done = agent("-x", "-p", "22", "host1", "hostname; echo ${OURS-none}; exit 3")
    assert (done.stdout.split(), done.returncode) == (["host1", "none"], 3)
    assert agent("someone@host0", "hostname").stdout == "host0\n"
    failure = agent("nowhere", "hostname")
    assert (failure.returncode, failure.stdout) == (255, "")
    assert "could not resolve hostname nowhere" in failure.stderr


def test_what_there_cannot_be() -> None:
    with pytest.raises(ValueError, match="expected 1 to 200 hosts, received 0"):
        Hosts(0)
    with (
        pytest.raises(RuntimeError, match="cannot make hosts: .*tc qdisc add"),
        Hosts(1, rate_mbit=1e-9),
    ):
        pass


def test_latency() -> None:
    if reason := unavailable(latency=True):
        pytest.skip(reason)
    with Hosts(2, rate_mbit=100, latency_ms=20) as hosts:
        start = time.monotonic()
        program = "import socket; socket.create_connection(('host1', 9), timeout=5)"
        assert "refused" in hosts[0].run(sys.executable, "-c", program, check=False).stderr
        assert time.monotonic() - start > 0.04


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it never came"
        time.sleep(0.05)


def interfaces() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def running_in(folder: str) -> list[str]:
    """The processes whose command line or environment names the folder."""
    names = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                names += [entry.name] if folder.encode() in words else []
        except OSError:
            continue
    return names


def test_nothing_stays_when_the_body_raises() -> None:
    before = interfaces()
    hosts = Hosts(3, rate_mbit=100)
    with contextlib.suppress(KeyError), hosts:
        sleeper = hosts[1].popen("sleep", "100")
        wait_until(hosts.processes)
        holders, folder = [host.pid for host in hosts], hosts.folder
        raise KeyError("the body")
    assert sleeper.wait(5) != 0
    assert not folder.exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in holders)
    assert running_in(str(folder)) == []
    assert interfaces() == before


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_stays_when_the_owner_is_killed(how: signal.Signals) -> None:
    program = """
from tests.hosts import Hosts
with Hosts(2, rate_mbit=100) as hosts:
    sleeper = hosts[1].popen("sleep", "100")
    print(hosts.folder, flush=True)
    sleeper.wait()
"""
    before = interfaces()
    owner = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert owner.stdout is not None
    folder = owner.stdout.readline().strip()
    wait_until(lambda: len(running_in(folder)) >= 3)
    owner.send_signal(how)
    assert owner.wait(10) == -how
    owner.stdout.close()
    wait_until(lambda: not running_in(folder) and not Path(folder).exists())
    assert interfaces() == before
