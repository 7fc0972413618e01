"""The context manager that makes hosts, and what can be done with one: run, kill, cut off, count.

A frame that a host sends passes a token bucket (`tc tbf`), which lets through exactly the rate,
headers included, after a burst of at most BURST_BYTES. What it received before, or what its
neighbour may send, it does not limit: links are full duplex.

What the bucket counts is what the wire would carry: TCP hands it segments of up to 64 KiB, which it
counts as the frames that a network card would make of them, each with its headers. The interface's
own counters (/proc/net/dev) count such a segment's headers once; `Traffic` has the bucket's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hosts.relay import Faults

NETWORK = "10.213.45"
"""The hosts are .1, .2, … of it. No other network sees it."""
SUBNET = f"{NETWORK}.0/24"
MTU, JUMBO_MTU = 1500, 9000
ETHERNET_HEADER = 14
TCP_HEADERS = 20 + 20 + 12
"""IPv4, TCP, and the time stamps that Linux sends with each segment."""
BURST_BYTES = 128 << 10
"""More than one segment of 64 KiB, which the bucket would cut up otherwise; 2 ms at 500 Mbit/s."""
QUEUE = "20ms"
"""What may wait before the bucket. More than a socket sends ahead, so that nothing is dropped."""

_START_TIMEOUT = 30.0
_END_TIMEOUT = 10.0
_TOOLS = ("ip", "tc", "nsenter", "unshare", "mount")


@dataclass(frozen=True)
class Traffic:
    """What a host has sent through its link.

    Attributes:
        bytes: all, with Ethernet, IP and TCP headers and acknowledgements.
        frames: how many frames that was.
    """

    bytes: int
    frames: int

    @property
    def payload(self) -> int:
        """Bytes within the TCP streams: an acknowledgement is a frame of headers alone."""
        return self.bytes - self.frames * (ETHERNET_HEADER + TCP_HEADERS)

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(self.bytes - other.bytes, self.frames - other.frames)


ASK_TRAFFIC = ("tc", "-s", "-j", "qdisc", "show", "dev", "eth0")
"""What a host runs to see what its bucket has counted, for `count_traffic`."""


def count_traffic(answer: str) -> Traffic:
    """What a host has sent, headers included, by its answer to ASK_TRAFFIC."""
    roots = [entry for entry in json.loads(answer) if entry.get("root")]
    if len(roots) != 1 or roots[0]["kind"] == "noqueue":
        raise RuntimeError("this host has no bucket that counts: give a rate")
    return Traffic(roots[0]["bytes"], roots[0]["packets"])


def payload_part(mtu: int) -> float:
    """What part of the bytes of full frames is payload of TCP."""
    return (mtu - TCP_HEADERS) / (mtu + ETHERNET_HEADER)


def bucket(rate_mbit: float) -> list[str]:
    """What `tc qdisc add dev eth0`, or `change`, is told for a rate."""
    rate = ["rate", f"{round(rate_mbit * 1e6)}bit"]
    return ["root", "handle", "1:", "tbf", *rate, "burst", str(BURST_BYTES), "latency", QUEUE]


class Host:
    """One host of `Hosts`.

    Attributes:
        name: its host name, which all of them can resolve.
        address: its IPv4 address.
        pid: the process that holds its namespaces, as seen from outside.
    """

    def __init__(self, hosts: Hosts, index: int, pid: int) -> None:
        self._hosts = hosts
        self.index = index
        self.name = f"host{index}"
        self.address = f"{NETWORK}.{index + 1}"
        self.pid = pid

    def command(self, *words: str) -> list[str]:
        """The command that runs `words` on this host, in this process' folder."""
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--uts", "--net", "--pid", "--"]
        # Open MPI leaves a folder per job in TMPDIR if it is killed.
        return [*enter, "env", "-C", os.getcwd(), f"TMPDIR={self.folder}", *words]

    @property
    def folder(self) -> Path:
        """A folder for the temporary files of this host, which goes with the hosts."""
        return self._hosts.folder / self.name

    def run(
        self, *words: str, timeout: float = 30.0, check: bool = True, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command and waits for its end; the options are those of `subprocess.run`."""
        options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, **options}
        return subprocess.run(self.command(*words), timeout=timeout, check=check, **options)

    def popen(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Starts a command; the options are those of `subprocess.Popen`."""
        options = {"text": True, "stdin": subprocess.DEVNULL, **options}
        return subprocess.Popen(self.command(*words), **options)

    def processes(self) -> list[int]:
        """The processes that run on this host, as seen from outside."""
        network = _namespace(self.pid, "net")
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [pid for pid in pids if pid != self.pid and _namespace(pid, "net") == network]

    def lose(self) -> None:
        """Kills everything that runs on this host, for good: the agent starts nothing on it."""
        (self._hosts.folder / f"{self.name}.lost").touch()
        self.kill()

    def kill(self, pids: Iterable[int] | None = None) -> int:
        """Kills everything that runs on this host, or some of it; returns how many that were."""
        killed: set[int] = set()
        for _ in range(100):  # again and again, for a process may fork while we look
            running = self.processes()
            running = running if pids is None else sorted(set(running) & set(pids))
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            if not running:
                break
            time.sleep(0.01)
        return len(killed)

    def cut(self) -> None:
        """Takes the link down: nothing comes in or goes out until `restore`."""
        self._hosts.switch("ip", "link", "set", f"port{self.index}", "down")

    def restore(self) -> None:
        """Takes the link up again."""
        self._hosts.switch("ip", "link", "set", f"port{self.index}", "up")

    @contextlib.contextmanager
    def relayed(self, faults: Faults) -> Iterator[None]:
        """Let what comes in and goes out pass a relay with faults, for the length of a `with`."""
        plan = json.dumps(dataclasses.asdict(faults))
        program = [sys.executable, "-I", str(Path(__file__).with_name("relay.py"))]
        enter = ["nsenter", "--target", str(self._hosts.root), "--net", "--"]
        relay = subprocess.Popen(
            [*enter, *program, f"port{self.index}", str(self._hosts.mtu), plan],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with relay:  # its input is closed at the end, and it is waited for
            assert relay.stdout is not None
            if relay.stdout.readline() != "ready\n":
                raise RuntimeError(f"no relay for {self.name}: see above")
            yield

    def traffic(self) -> Traffic:
        """What has gone through the link since the host was made, counted as on the wire."""
        return count_traffic(self.run(*ASK_TRAFFIC).stdout)

    def counters(self) -> dict[str, int]:
        """The interface's own counters: rx_bytes, rx_packets, tx_bytes, tx_packets."""
        lines = Path(f"/proc/{self.pid}/net/dev").read_text().splitlines()
        fields = next(line for line in lines if line.strip().startswith("eth0:")).split()
        names = {"rx_bytes": 1, "rx_packets": 2, "tx_bytes": 9, "tx_packets": 10}
        return {name: int(fields[column]) for name, column in names.items()}

    def shared_memory(self) -> set[str]:
        """The names in this host's /dev/shm."""
        return set(os.listdir(f"/proc/{self.pid}/root/dev/shm"))


class Hosts:
    """`count` hosts, joined by a switch, for the length of a `with`.

    Args:
        count: how many, up to 200.
        rate_mbit: 1e6 bits per second that each host may send, frame headers included; None: as
            fast as this machine can.
        mtu: the bytes of a frame after its Ethernet header; JUMBO_MTU for fewer headers.
        latency_ms: what each host's frames wait before they leave; needs the kernel's netem.

    Commands run on a host through `Host.run` and `Host.popen`, or with `agent`, a program that is
    used as ssh is: `agent host1 command`. It gives the command an environment of its own, as ssh
    does, and works on each host.
    """

    def __init__(
        self,
        count: int,
        *,
        rate_mbit: float | None = None,
        mtu: int = MTU,
        latency_ms: float = 0.0,
    ) -> None:
        if not 1 <= count <= 200:
            raise ValueError(f"expected 1 to 200 hosts, received {count}")
        self.count, self.rate_mbit, self.mtu, self.latency_ms = count, rate_mbit, mtu, latency_ms
        self._list: list[Host] = []
        self._world: subprocess.Popen[str] | None = None
        self.root = 0  # the process in whose namespaces the switch is
        self.folder = Path()

    @property
    def payload_rate(self) -> float:
        """Bytes per second that a TCP stream can carry between two hosts."""
        if self.rate_mbit is None:
            raise ValueError("these hosts have no rate")
        return self.rate_mbit * 1e6 / 8 * payload_part(self.mtu)

    @property
    def agent(self) -> Path:
        """The program to use in place of ssh: `agent HOST COMMAND…`."""
        return self.folder / "agent"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Host:
        return self._list[index]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._list)

    def processes(self) -> list[int]:
        """The processes that run on any host, as seen from outside."""
        networks = {_namespace(host.pid, "net") for host in self}
        roots = {host.pid for host in self}
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [pid for pid in pids if pid not in roots and _namespace(pid, "net") in networks]

    def __enter__(self) -> Hosts:
        self.folder = Path(tempfile.mkdtemp(prefix="hosts-"))
        try:
            self._start()
            self._write_agent()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._world is not None:
            assert self._world.stdin is not None
            self._world.stdin.close()
            try:
                self._world.wait(_END_TIMEOUT)
            except subprocess.TimeoutExpired:
                if self.root:
                    os.kill(self.root, signal.SIGKILL)
                self._world.kill()
                self._world.wait()
            assert self._world.stdout is not None
            self._world.stdout.close()
        self._list, self._world = [], None
        shutil.rmtree(self.folder, ignore_errors=True)

    def switch(self, *words: str) -> None:
        """Runs a command where the switch is, to change a link."""
        enter = ["nsenter", "--target", str(self.root), "--net", "--"]
        subprocess.run([*enter, *words], check=True, timeout=30)

    def _plan(self) -> dict[str, Any]:
        names = self.folder / "etc-hosts"
        lines = [f"{NETWORK}.{i + 1} host{i}\n" for i in range(self.count)]
        names.write_text("127.0.0.1 localhost\n" + "".join(lines))
        names.chmod(0o644)
        host = {"mtu": self.mtu, "hosts_file": str(names), "qdiscs": self._queues()}
        entries = [
            {**host, "name": f"host{i}", "address": f"{NETWORK}.{i + 1}/24"}
            for i in range(self.count)
        ]
        return {"mtu": self.mtu, "hosts": entries, "folder": str(self.folder)}

    def _queues(self) -> list[list[str]]:
        queues = []
        if self.rate_mbit is not None:
            queues.append(bucket(self.rate_mbit))
        if self.latency_ms:
            place = ["parent", "1:1"] if queues else ["root"]
            queues.append([*place, "netem", "delay", f"{self.latency_ms}ms", "limit", "100000"])
        return queues

    def _start(self) -> None:
        unshare = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
        program = [sys.executable, "-I", str(Path(__file__).with_name("world.py"))]
        self._world = subprocess.Popen(
            [*unshare, *program, json.dumps(self._plan())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the owner, which then closes the pipe
        )
        assert self._world.stdout is not None
        answer = _answer(self._world.stdout, _START_TIMEOUT)
        if "pids" not in answer:
            raise RuntimeError(f"cannot make hosts: {answer.get('error', 'they did not come up')}")
        self._inner = answer["pids"]
        self.root = _children(self._world.pid)[0]
        outer_ids = {_inner_id(pid): pid for pid in _children(self.root)}
        self._list = [Host(self, i, outer_ids[pid]) for i, pid in enumerate(self._inner)]
        for host in self._list:
            host.folder.mkdir()

    def _write_agent(self) -> None:
        cases = "".join(
            f"{h.name}) pid={p} ;;\n" for h, p in zip(self._list, self._inner, strict=True)
        )
        self.agent.write_text(_AGENT.format(folder=self.folder, cases=cases))
        self.agent.chmod(0o755)


# The two variables mark the processes of a job, for those who must find them to the last.
# Options of ssh are read and ignored; a host that is not known is said as ssh says it.
_AGENT = """#!/bin/sh
# agent HOST COMMAND...: runs a command on a host, with an environment of its own, as ssh does.
while true; do
    case "$1" in
        -[bcDEeFIiJLlmOoPpQRSWw]) shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
name="$1"
shift
case "${{name#*@}}" in
{cases}*) echo "agent: could not resolve hostname $name" >&2; exit 255 ;;
esac
if [ -e "{folder}/${{name#*@}}.lost" ]; then
    echo "agent: connect to host $name: No route to host" >&2; exit 255
fi
exec nsenter --target "$pid" --mount --uts --net -- env -i -C "$HOME" \\
    HOME="$HOME" PATH="$PATH" SHELL=/bin/sh TMPDIR="{folder}/${{name#*@}}" \\
    RINGAR_TEST_MARK="$RINGAR_TEST_MARK" RINGAR_BENCHMARK_JOB="$RINGAR_BENCHMARK_JOB" \\
    /bin/sh -c "$*"
"""


@functools.cache
def unavailable(*, latency: bool = False) -> str | None:
    """Why there can be no hosts here, in a line; None if there can."""
    tools = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if tools:
        return f"needs {', '.join(tools)} (Debian: iproute2, util-linux)"
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    try:
        with Hosts(2, rate_mbit=100, latency_ms=0.1 if latency else 0.0) as hosts:
            hosts[0].run("true")
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return f"cannot make network namespaces here: {error}"
    return None


def _answer(stream: Any, timeout: float) -> dict[str, Any]:
    if not select.select([stream], [], [], timeout)[0]:
        return {}
    line = stream.readline()
    return dict(json.loads(line)) if line else {}


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _inner_id(pid: int) -> int:
    """The id of a process in the innermost namespace that it is in."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    raise RuntimeError("this kernel does not tell process ids in namespaces")


def _namespace(pid: int, kind: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:  # it ended, or it is not ours
        return ""
