"""The stand-in for the CUDA driver and NCCL is as asynchronous as a GPU, and fails when told to."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import textwrap
import threading
import time
from ctypes import byref, c_void_p
from pathlib import Path

import numpy as np
import pytest

from tests.plugin.jobs import ROOT
from tests.standins.gpu_calls import Library, Rank, address, on_ranks, size, until
from tests.standins.gpu_library import ABIS

pytestmark = [pytest.mark.job, pytest.mark.slow]


def test_every_name_is_exported(path: Path) -> None:
    text = "".join(abi.read_text() for abi in ABIS)
    names = re.findall(r"^  F\(\w+, (\w+),", text, re.M)
    assert len(names) == len(re.findall(r"^  F\(", text, re.M)) >= 50
    library = ctypes.CDLL(str(path))
    for name in names:
        assert library[name]


def test_processes(path: Path, tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, sys
            from pathlib import Path
            import numpy as np
            from tests.standins.gpu_calls import Library, Rank, UniqueId
            gpu = Library(Path(sys.argv[1]))
            unique = gpu.unique_id()
            children = []
            for rank in range(2):
                child = os.fork()
                if child == 0:
                    with gpu.device():
                        its = Rank(gpu, 2, rank, unique)
                        its.ready()
                        data = np.full(100_000, rank + 1, np.float32)
                        its.run("ncclAllReduce", data, data, len(data), 7, 0)
                        its.close()
                    assert (data == 3).all() and not gpu.misuse() and not gpu.open()
                    os._exit(0)
                children.append(child)
            sys.exit(sum(os.waitpid(child, 0)[1] for child in children) != 0)
            """
        )
    )
    subprocess.run(
        [sys.executable, script, path], cwd=ROOT, env=environment(), check=True, timeout=30
    )


def environment(**variables: str) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **variables}


def test_the_environment_says_what_fails(path: Path) -> None:
    source = f"""
        from pathlib import Path
        from tests.standins.gpu_calls import Library
        gpu = Library(Path({str(path)!r}))
        print([gpu.code("cuInit", 0) for _ in range(3)], gpu.code("cuDeviceGet", bytes(4), 1))
    """
    variables = environment(STANDIN_FAIL="cuInit:2,ncclAllReduce:1", STANDIN_DEVICES="2")
    command = [sys.executable, "-c", textwrap.dedent(source)]
    done = subprocess.run(
        command, cwd=ROOT, env=variables, check=True, timeout=30, capture_output=True, text=True
    )
    assert done.stdout == "[0, 999, 0] 0\n"


def test_streams_run_later_and_in_order(gpu: Library) -> None:
    order: list[str] = []
    gate = threading.Event()

    def wait_and_note() -> None:
        gate.wait(10)
        order.append("first")

    with gpu.device(), gpu.stream() as first, gpu.stream() as second:
        event = gpu.handle("cuEventCreate", 2)
        assert gpu.code("cuEventQuery", event) == 0  # never recorded
        gpu.enqueue(first, wait_and_note)
        gpu.cuEventRecord(event, first)
        gpu.cuStreamWaitEvent(second, event, 0)
        gpu.enqueue(second, lambda: order.append("second"))
        gpu.cuEventRecord(event, second)  # the wait above is for the earlier record
        assert gpu.code("cuEventQuery", event) == 600
        gpu.enqueue(None, lambda: order.append("default"))
        gpu.cuStreamSynchronize(None)
        assert order == ["default"]
        gate.set()
        gpu.cuStreamSynchronize(second)
        assert order == ["default", "first", "second"]
        assert gpu.code("cuEventQuery", event) == 0
        gpu.cuEventDestroy_v2(event)


def test_copies_and_waits_for_words(gpu: Library) -> None:
    with gpu.device(), gpu.stream() as stream:
        word, memory = (
            gpu.handle("cuMemHostAlloc", size(8), 3),
            gpu.handle("cuMemAlloc_v2", size(64)),
        )
        flag = ctypes.cast(word, ctypes.POINTER(ctypes.c_uint32))
        flag[0] = 0
        assert gpu.open() == (
            "contexts=1 streams=1 events=0 device_bytes=64 host_bytes=8 communicators=0 redops=0 "
            "groups=0"
        )
        pointer = gpu.handle("cuMemHostGetDevicePointer_v2", word, 0)
        array = np.arange(64, dtype=np.uint8)
        gpu.cuStreamWaitValue32_v2(stream, pointer, 5, 1)
        gpu.cuMemcpyHtoDAsync_v2(memory, address(array), size(64), stream)
        gpu.cuMemsetD8Async(memory, 9, size(2), stream)
        array[:] = 0  # it was read when the copy was enqueued, for it is not of cuMemHostAlloc
        assert ctypes.string_at(memory, 64) == b"\xee" * 64
        flag[0] = 5
        gpu.cuMemcpyDtoHAsync_v2(address(array), memory, size(64), stream)
        assert array.tolist() == [9, 9, *range(2, 64)]
        gpu.cuMemFree_v2(memory)
        gpu.cuMemFreeHost(word)


def test_a_call_fails_when_told_to(gpu: Library) -> None:
    with gpu.device(), gpu.stream():
        event = c_void_p()
        gpu.standin_fail("cuEventCreate", 2)
        gpu.standin_fail("ncclGetUniqueId", 1)
        codes = [gpu.code("cuEventCreate", byref(event), 2) for _ in range(2)]
        assert codes == [0, 999]
        assert gpu.code("ncclGetUniqueId", None) == 3
        assert gpu.code("standin_calls", "cuEventCreate") == 2
        gpu.cuEventDestroy_v2(event)

    def work(member: Rank) -> None:
        data = np.ones(4, np.float32)
        gpu.standin_fail("ncclAllReduce", 2)
        gpu.ncclGroupStart()
        codes = [member.call("ncclAllReduce", data, data, size(4), 7, 0) for _ in range(2)]
        assert codes == [0, 3]
        assert gpu.code("ncclGroupEnd") == 3  # the whole group
        gpu.standin_fail("ncclGroupEnd", 1)
        gpu.ncclGroupStart()
        assert member.call("ncclAllReduce", data, data, size(4), 7, 0) == 0
        assert gpu.code("ncclGroupEnd") == 3
        member.synchronize()
        member.run("ncclAllReduce", data, data, size(4), 7, 0)

    on_ranks(gpu, 1, work)


def test_a_call_fails_as_it_is_told_to(gpu: Library) -> None:
    gpu.standin_fail_with("ncclGetUniqueId", 1, 2, "no socket")
    assert gpu.code("ncclGetUniqueId", None) == 2
    assert gpu.text("ncclGetLastError", None) == "no socket"


def test_a_call_hangs_until_it_is_released(gpu: Library) -> None:
    gpu.standin_hang("cuInit", 1)
    thread = threading.Thread(target=gpu.cuInit, args=(0,), daemon=True)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    gpu.standin_release()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("version", "why"), [(22703, "Duplicate GPU detected"), (23100, "NCCL_MULTI_RANK_GPU_ENABLE=1")]
)
def test_ranks_do_not_share_a_gpu(gpu: Library, version: int, why: str) -> None:
    gpu.standin_place(0, 5)
    gpu.standin_pretend_version(version)
    with gpu.device():
        unique = gpu.unique_id()
        members = [Rank(gpu, 2, rank, unique) for rank in range(2)]
        assert [gpu.state(member.communicator) for member in members] == [5, 5]
        for member in members:
            member.abort()
    gpu.standin_place(0, -1)
    gpu.standin_pretend_version(22703)
    assert why in gpu.misuse()
    gpu.standin_forget()


def test_an_operation_fails_later(gpu: Library) -> None:
    gpu.standin_fail_later("ncclAllGather", 2)

    def work(member: Rank) -> None:
        data = np.zeros(4, np.int8)
        member.run("ncclAllGather", data, data, size(4), 0)
        assert member.call("ncclAllGather", data, data, size(4), 0) == 7
        until(lambda: gpu.state(member.communicator) == 6)
        assert member.call("ncclAllGather", data, data, size(4), 0) == 6
        event = gpu.handle("cuEventCreate", 2)
        gpu.cuEventRecord(event, member.stream)
        time.sleep(0.01)
        assert gpu.code("cuEventQuery", event) == 600
        member.abort()
        assert gpu.code("cuEventQuery", event) == 0
        gpu.cuEventDestroy_v2(event)
        assert data.tolist() == [0x77] * 4

    on_ranks(gpu, 1, work, closes=False)


def test_an_abort_frees_a_rank_whose_peer_never_comes(gpu: Library) -> None:
    with gpu.device():
        member = Rank(gpu, 2, 0, gpu.unique_id())
        time.sleep(0.02)
        member.abort()

    def work(member: Rank) -> list[int]:
        data = np.zeros(4, np.int8)
        if member.rank == 0:
            assert member.call("ncclAllReduce", data, data, size(4), 0, 0) == 7
            member.ready()
            time.sleep(0.02)
        member.abort()
        return data.tolist()

    assert on_ranks(gpu, 2, work, closes=False) == [[0x77] * 4, [0] * 4]


def test_waits_end_at_the_timeout(gpu: Library) -> None:
    gpu.standin_timeout(0.05)
    with gpu.device():
        member = Rank(gpu, 2, 0, gpu.unique_id())
        assert gpu.state(member.communicator) == 6
        assert "waited too long" in gpu.text("ncclGetLastError", None)
        member.abort()
