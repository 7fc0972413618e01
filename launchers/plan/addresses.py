"""Find the addresses at which other hosts reach this one."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from ringar.launchers.errors import UsageError

_LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915  # <linux/sockios.h>: the address of an interface


def of_interfaces() -> dict[str, list[str]]:
    """Return the addresses of each network interface: first IPv4, then IPv6."""
    import fcntl  # which Windows lacks

    interfaces: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for name, addresses in interfaces.items():
            with contextlib.suppress(OSError):  # an interface without an IPv4 address
                request = struct.pack("256s", name.encode())
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
                addresses.append(socket.inet_ntoa(answer[20:24]))
    with contextlib.suppress(OSError):  # a kernel without IPv6
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, *_, name = line.split()
            address = ipaddress.IPv6Address(bytes.fromhex(digits))
            interfaces.setdefault(name, []).append(
                f"{address}%{name}" if address.is_link_local else str(address)
            )
    return interfaces


def towards(host: str) -> str:
    """Return the address from which this host sends to `host`; "" for an alias that ssh knows."""
    name = host.rpartition("@")[2]  # without a user, or the member of a cluster
    with contextlib.suppress(OSError):
        for family, kind, *_, address in socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(address)  # sends nothing
                return str(probe.getsockname()[0])
    return ""


def of_default_route() -> list[str]:
    """Return the addresses from which this host sends to hosts outside of its own networks."""
    # Addresses for documentation, which no network has.
    return [address for address in map(towards, ("192.0.2.1", "2001:db8::1")) if address]


def loopback() -> str:
    """Return the address of the loopback interface, which may have only that of IPv6."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET) as probe:
        probe.bind((_LOOPBACK, 0))
        return _LOOPBACK
    return "::1"


def _is_here(address: str) -> bool:
    """Return whether this host has `address`; `of_interfaces` has one of IPv4 per interface."""
    with contextlib.suppress(OSError):
        for family, kind, *_, bound in socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as probe:
                probe.bind(bound)
                return True
    return False


def not_loopback(addresses: Sequence[str]) -> list[str]:
    """Return the `addresses` at which other hosts could reach this one."""
    return [text for text in addresses if text and not ipaddress.ip_address(text).is_loopback]


def to_listen_at(
    interfaces: Sequence[str],
    peers: Sequence[str],
    environ: Mapping[str, str],
    *,
    grows: bool = False,
    seen_at: Sequence[str] = (),
) -> str:
    """Return the address of this host for the other hosts of a job.

    Args:
        interfaces: those of `--network-interface`, by name or as subnets; empty for any.
        peers: the names of the other hosts.
        environ: the environment, in which sshd tells the address that it was reached at.
        grows: whether other hosts may join later.
        seen_at: the addresses from which other hosts were reached, the launcher's.

    Raises:
        UsageError: this host has none of the interfaces, or no address.
    """
    local_interfaces = of_interfaces()
    if interfaces:
        return _of_named(interfaces, local_interfaces)
    if not (peers or grows):
        return loopback()
    everywhere = [address for addresses in local_interfaces.values() for address in addresses]
    by_ssh = environ.get("SSH_CONNECTION", "").split()[2:3]
    # Both may be of another host: srun hands on the variable of the host that it runs on, and a
    # host that is reached through another one sees that one's address.
    ssh_addresses = [text for text in (*seen_at, *by_ssh) if text in everywhere or _is_here(text)]
    likely = [*map(towards, peers), *ssh_addresses, *of_default_route(), *everywhere]
    candidates = not_loopback(likely)
    if not (candidates or peers):
        return loopback()
    if not candidates:
        raise UsageError("expected a network interface besides the loopback, found none", 1)
    return candidates[0]


def _of_named(interfaces: Sequence[str], local_interfaces: Mapping[str, Sequence[str]]) -> str:
    everywhere = [address for addresses in local_interfaces.values() for address in addresses]
    for interface in interfaces:
        if "/" in interface:
            network = _network(interface)
            inside = [text for text in everywhere if ipaddress.ip_address(text) in network]
        else:
            inside = list(local_interfaces.get(interface, ()))
        if inside:
            return inside[0]
    with_address = ", ".join(name for name, addresses in local_interfaces.items() if addresses)
    raise UsageError(
        f"--network-interface: expected an interface of this host that has an address "
        f"({with_address}), received {','.join(interfaces)}"
    )


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise UsageError(f"--network-interface: expected a subnet: {error}") from None
