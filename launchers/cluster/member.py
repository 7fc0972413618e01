"""A process of a cluster manager: it runs the commands of a launcher on its host (`cluster.py`)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from typing import IO, Any

from ringar.launchers.cluster.agent import ERR, EXIT, OUT
from ringar.launchers.function.rendezvous import BY_SSH, meet
from ringar.launchers.plan.gpus import OF_RANKS_VARIABLE
from ringar.launchers.start import member_path
from ringar.launchers.supervise import graces

GPUS = "CUDA_VISIBLE_DEVICES"

# The shell ends with the thread of this process that waits for it.
_SHELL = """
import os, signal, sys
from ringar.launchers.supervise.ranks import bound_to_launcher
bound_to_launcher(signal.SIGTERM, int(sys.argv[1]))()
os.execv("/bin/sh", ["sh", "-c", sys.argv[2]])
"""


def serve(variable: str, index: int, host: str = "", gpus: str | None = None) -> None:
    """Serve as a member of a cluster, up to its end.

    Args:
        variable: the `variable` of the `Cluster`.
        index: the number of this member.
        host: the address of this host, at which the others reach it. Members with the same address
            make one host. "": that from which this process reaches the caller.
        gpus: the GPUs that it may use, as in CUDA_VISIBLE_DEVICES; None: the variable's value here.

    Raises:
        ConnectionError: the caller cannot be reached.
    """
    commands: list[threading.Thread] = []
    with meet(variable) as control:
        gpus = os.environ.get(GPUS) if gpus is None else gpus
        hello = {"member": index, "host": host, "gpus": gpus}
        control.send_bytes(json.dumps(hello).encode())
        with contextlib.suppress(EOFError, OSError):
            while True:
                order = json.loads(control.recv_bytes())
                commands.append(threading.Thread(target=_run, args=(variable, order)))
                commands[-1].start()
    for command in commands:
        command.join()


def _run(variable: str, order: dict[str, Any]) -> None:
    """Run a command, and pass on its input, its output and its exit code."""
    with meet(variable) as way:
        way.send_bytes(json.dumps({"run": order["run"]}).encode())
        environ = dict(os.environ)
        environ[BY_SSH] = _addresses(way)  # by which a guard knows where its host was reached
        environ[member_path.VARIABLE] = member_path.of_this_process()
        if "gpus" in order:
            # Members may share a GPU.
            devices = [gpu for gpus in order["gpus"] for gpu in gpus.split(",") if gpu]
            environ[GPUS] = ",".join(dict.fromkeys(devices))
            environ[OF_RANKS_VARIABLE] = ";".join(order["gpus"])
        process = subprocess.Popen(
            [sys.executable, "-c", _SHELL, str(os.getpid()), order["command"]],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        lock = threading.Lock()
        outputs = [
            threading.Thread(target=_pass_on, args=(pipe, way, kind, lock))
            for pipe, kind in ((process.stdout, OUT), (process.stderr, ERR))
        ]
        feeder = threading.Thread(target=_feed, args=(way, process), daemon=True)
        for thread in (*outputs, feeder):
            thread.start()
        code = process.wait()
        for thread in outputs:
            thread.join()
        with contextlib.suppress(OSError):
            way.send_bytes(EXIT + str(code if code >= 0 else 128 - code).encode())


def _addresses(way: Connection) -> str:
    """Return the addresses and ports of both ends, as sshd writes them."""
    with socket.socket(fileno=os.dup(way.fileno())) as endpoint:
        ends = [*endpoint.getpeername()[:2], *endpoint.getsockname()[:2]]
    return " ".join(map(str, ends))


def _pass_on(pipe: IO[bytes], way: Connection, kind: bytes, lock: threading.Lock) -> None:
    while data := os.read(pipe.fileno(), 1 << 16):
        with lock, contextlib.suppress(OSError):  # the reader is gone: `_feed` ends it
            way.send_bytes(kind + data)
    pipe.close()


def _feed(way: Connection, process: subprocess.Popen[bytes]) -> None:
    """Pass the input on; end the process if the way has ended before it."""
    assert process.stdin is not None
    pipe = process.stdin
    with contextlib.suppress(EOFError, OSError):
        while data := way.recv_bytes():
            os.write(pipe.fileno(), data)
        pipe.close()
        way.recv_bytes()  # nothing more, up to the end of the way
    with contextlib.suppress(OSError):
        pipe.close()
    try:
        process.wait(graces.KILL + graces.SETTLE)  # a guard ends with its input
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
