"""The addresses at which the hosts of a job reach each other."""

from __future__ import annotations

import pytest

from ringar.launchers.plan import addresses


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The interfaces of a host."""
    interfaces = {"lo": ["127.0.0.1"], "eth0": ["10.0.0.1", "fd00::1"], "eth1": ["10.1.0.1"]}
    monkeypatch.setattr(addresses, "of_interfaces", lambda: interfaces)
    monkeypatch.setattr(addresses, "towards", lambda host: "10.1.0.1" if host == "b" else "")
    return interfaces


def test_a_host_listens_where_the_others_are(interfaces: dict[str, list[str]]) -> None:
    assert addresses.to_listen_at([], ["a", "b"], {}) == "10.1.0.1"
    reached = {"SSH_CONNECTION": "10.0.0.9 1 10.1.0.1 22"}
    assert addresses.to_listen_at([], ["a"], reached) == "10.1.0.1"
    assert addresses.to_listen_at([], ["a"], {}) == "10.0.0.1"


def test_a_launcher_listens_where_others_have_seen_it(interfaces: dict[str, list[str]]) -> None:
    """`ssh` knows the others by an alias, and the first interface is one of containers."""
    first = {"docker0": ["172.17.0.1"], **interfaces}
    interfaces.clear()
    interfaces.update(first)
    assert addresses.to_listen_at([], ["a"], {}, seen_at=["10.1.0.1"]) == "10.1.0.1"
    # A gateway, which is not this host, and a variable that srun has brought from another host.
    elsewhere = {"SSH_CONNECTION": "10.0.0.9 1 192.0.2.7 22"}
    address = addresses.to_listen_at([], ["a"], elsewhere, seen_at=["192.0.2.8", "10.1.0.1"])
    assert address == "10.1.0.1"


def test_the_only_host_listens_for_those_that_may_come(interfaces: dict[str, list[str]]) -> None:
    assert addresses.to_listen_at([], [], {}) == "127.0.0.1"
    assert addresses.to_listen_at([], [], {}, grows=True) == "10.0.0.1"
    interfaces.clear()  # no network at all
    assert addresses.to_listen_at([], [], {}, grows=True) == "127.0.0.1"


def test_names_may_have_a_user() -> None:
    assert addresses.towards("somebody@127.0.0.1") == "127.0.0.1"
    assert addresses.towards("3@127.0.0.1") == "127.0.0.1"
