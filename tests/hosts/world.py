"""Makes hosts out of namespaces and keeps them: the first process of a world of its own.

    unshare --net --pid --fork --mount-proc python world.py PLAN-AS-JSON

It is process 1 of a process namespace. When it ends, the kernel kills every process in there; with
the last process go the namespaces, with these the links: nothing has a name outside, so nothing can
stay. It ends when its standard input does, that is when its owner closes the pipe or dies, however
that happens. Its own network namespace holds the bridge, the "switch" that all links end at.

Runs from bare Python, without this repository: it writes the process ids of the hosts, as seen
inside, as one line of JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

# From <sched.h>; Python has os.unshare from 3.12 on.
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


def call(*words: str) -> None:
    """Runs a command; its words are in the error."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")


def make_switch(mtu: int) -> None:
    call("ip", "link", "set", "lo", "up")
    # Without the delay a link that comes up waits for 15 s before it carries anything.
    call("ip", "link", "add", "name", "switch", "type", "bridge", "forward_delay", "0")
    call("ip", "link", "set", "switch", "up", "mtu", str(mtu))


def settle_network() -> None:
    """The same TCP everywhere, whatever the machine outside has been tuned to."""
    ipv4, ipv6 = Path("/proc/sys/net/ipv4"), Path("/proc/sys/net/ipv6/conf")
    for kind in ("all", "default"):
        if ipv6.exists():  # its neighbor discovery would be among what is counted
            (ipv6 / kind / "disable_ipv6").write_text("1")
    for control in ("cubic", "reno"):  # which of them a namespace may choose, the outside says
        with contextlib.suppress(OSError):
            (ipv4 / "tcp_congestion_control").write_text(control)
            break


def furnish(host: dict[str, Any]) -> None:
    """Gives this process the name, /dev/shm and /etc/hosts of a host."""
    if _LIBC.unshare(_CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    socket.sethostname(host["name"])
    settle_network()
    call("mount", "--make-rprivate", "/")
    call("mount", "-t", "tmpfs", "-o", "mode=1777", "shm", "/dev/shm")
    call("mount", "--bind", host["hosts_file"], "/etc/hosts")


def hold(host: dict[str, Any], ready: int) -> None:
    """The process that is a host: it does nothing, and the namespaces live as long as it does."""
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        furnish(host)
        os.write(ready, b"ok")
    except BaseException as error:
        os.write(ready, str(error).encode()[:2000])
        os._exit(1)
    os.dup2(2, 1)
    os.close(ready)
    while True:
        signal.pause()


def start(host: dict[str, Any]) -> int:
    """Starts the process of a host; returns its id."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        hold(host, writer)
    os.close(writer)
    text = os.read(reader, 2000).decode()
    os.close(reader)
    if text != "ok":
        raise RuntimeError(f"{host['name']}: {text or 'it ended'}")
    return pid


def link(host: dict[str, Any], pid: int, index: int) -> None:
    """Joins a host to the switch, and sets what it may send."""
    port = f"port{index}"
    words = ["ip", "link", "add", "name", port, "mtu", str(host["mtu"]), "type", "veth"]
    call(*words, "peer", "name", "eth0", "mtu", str(host["mtu"]), "netns", str(pid))
    call("ip", "link", "set", port, "master", "switch", "up")
    inside = ["nsenter", "--target", str(pid), "--net"]
    call(*inside, "ip", "link", "set", "lo", "up")
    call(*inside, "ip", "address", "add", host["address"], "dev", "eth0")
    call(*inside, "ip", "link", "set", "eth0", "up")
    for words in host["qdiscs"]:
        call(*inside, "tc", "qdisc", "add", "dev", "eth0", *words)


def reap_until_end_of_input() -> None:
    """Process 1 is the parent of all whose own has gone; it ends with its owner's pipe."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        readable, _, _ = select.select([0, wake], [], [], 1.0)
        if 0 in readable and not os.read(0, 1):
            return
        if wake in readable:
            os.read(wake, 4096)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def end(folder: str) -> None:
    """Kills all that is left in this world, and removes the folder that was for it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    plan = json.loads(sys.argv[1])
    try:
        make_switch(plan["mtu"])
        pids = []
        for index, host in enumerate(plan["hosts"]):
            pids.append(start(host))
            link(host, pids[-1], index)
    except (RuntimeError, OSError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    print(json.dumps({"pids": pids}), flush=True)
    reap_until_end_of_input()
    end(plan["folder"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
