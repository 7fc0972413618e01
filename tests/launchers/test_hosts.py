from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ringar.launchers.errors import UsageError
from ringar.launchers.plan.addresses import of_interfaces
from ringar.launchers.plan.hosts import Host, collect, fill, is_this_host, parse, read

TWO = (Host("h1", 4), Host("h2", 2))


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("h1:4,h2:2", TWO),
        ("h1", (Host("h1", 1),)),
        ("a.b-c_d.example:16", (Host("a.b-c_d.example", 16),)),
        ("10.0.0.1:2, 10.0.0.2:2", (Host("10.0.0.1", 2), Host("10.0.0.2", 2))),
        ("[fe80::1%eth0]:3,[::1]", (Host("fe80::1%eth0", 3), Host("::1", 1))),
    ],
)
def test_host_lists(text: str, hosts: tuple[Host, ...]) -> None:
    assert parse(text) == hosts


def test_a_host_is_written_as_it_is_read() -> None:
    for host in parse("h1:4,[::1]:2"):
        assert parse(str(host)) == (host,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected hosts as in h1:4,h2:4, received ''"),
        ("h1:4,", "received '' in 'h1:4,'"),
        ("h1:4;h2:4", "expected hosts as in h1:4,h2:4, received 'h1:4;h2:4'"),
        ("h1:0", "1 or more, received '0'"),
        ("h1:-1", "received '-1'"),
        ("h1:four", "received 'four'"),
        ("h1:", "received ''"),
        ("h1=4", "received 'h1=4'"),
        ("h 1:4", "received 'h 1:4'"),
        ("fe80::1", "received 'fe80::1' in 'fe80::1'; write an IPv6 address in brackets"),
        ("h1:4,h2:4,h1:2", "expected each host once, received 'h1' twice"),
    ],
)
def test_bad_host_lists(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert str(caught.value).startswith("-H: ")


@pytest.mark.parametrize(
    "text",
    [
        "h1 slots=4\nh2 slots=2\n",
        "h1 slots=4 max_slots=8\nh2 slots=2 max-slots=2",
        "h1:4\nh2:2\n",
        "# all of them\n\n  h1\tslots=4  # the first\n\nh2:2\r\n",
    ],
    ids=["Horovod", "Open MPI", "MPICH", "comments"],
)
def test_host_files(text: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    assert read(path) == TWO


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("h1 slots=4\nh2 slots\n", 2, "expected slots=N or max_slots=N, received 'slots'"),
        ("h1 slots=4\n\n# x\nh2 cores=4\n", 4, "received 'cores=4'"),
        ("h1 slots=x\n", 1, "expected slots=N with the number of slots, 1 or more, received 'x'"),
        ("h1 slots=0\n", 1, "received '0'"),
        ("h1:4 slots=4\n", 1, "expected the slots once, received 'h1:4 slots=4'"),
        ("h1 slots=4 max_slots=2\n", 1, "expected slots up to max_slots=2, received 4"),
        ("h1:4,h2:4\n", 1, "expected a host, as in: h1 slots=4; received 'h1:4,h2:4'"),
        ("=4\n", 1, "expected a host, as in: h1 slots=4; received '=4'"),
        ("h1:4\nh2:4\nh1:4\n", 3, "expected each host once with its slots, received 'h1' again"),
        ("h1\nh1:4\n", 2, "expected each host once with its slots, received 'h1' again"),
    ],
)
def test_errors_name_file_and_line(text: str, line: int, message: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert message in str(caught.value)


def test_files_that_are_not_host_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read .*missing': No such file"):
        read(tmp_path / "missing")
    with pytest.raises(UsageError, match="cannot read .*: Is a directory"):
        read(tmp_path)
    (tmp_path / "empty").write_text("# nothing\n")
    with pytest.raises(UsageError, match="empty: expected a host per line.* received none"):
        read(tmp_path / "empty")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot read .*: it is not a text"):
        read(tmp_path / "binary")


def test_ranks_fill_hosts_in_their_order() -> None:
    assert fill(TWO, None, "-H") == TWO
    assert fill(TWO, 6, "-H") == TWO
    assert fill(TWO, 5, "-H") == (Host("h1", 4), Host("h2", 1))
    assert fill(TWO, 4, "-H") == (Host("h1", 4),)
    assert fill(TWO, 1, "-H") == (Host("h1", 1),)
    with pytest.raises(UsageError, match=r"at most 6 ranks, the slots of 2 hosts \(-H\), rec.* 7"):
        fill(TWO, 7, "-H")


def test_a_file_with_a_line_per_slot(tmp_path: Path) -> None:
    """As Open MPI reads it, and PBS writes it."""
    path = tmp_path / "hosts"
    path.write_text("h1\nh2\nh1\n")
    assert read(path) == (Host("h1", 2), Host("h2", 1))


def test_lists_with_a_line_per_slot() -> None:
    assert collect(["h1", "h2", "h1"]) == (Host("h1", 2), Host("h2", 1))


def test_own_names() -> None:
    name = socket.gethostname()
    assert is_this_host("localhost")
    assert is_this_host(name)
    assert is_this_host(name.partition(".")[0])
    for addresses in of_interfaces().values():
        assert all(map(is_this_host, addresses)), addresses
    assert not is_this_host("127.0.0.2")
    assert not is_this_host("192.0.2.1")  # of no host: RFC 5737
    assert not is_this_host(f"not-{name}")
