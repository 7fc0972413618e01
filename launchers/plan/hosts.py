"""Read the hosts of a job and their slots, from `-H` or a host file.

A host list names hosts with their slots, `h1:4,h2:4`. A host file has one host per line, in the
form of Open MPI and Horovod (`h1 slots=4`) or of MPICH (`h1:4`). Ranks fill the hosts in the
order in which they are named.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringar.launchers.errors import UsageError
from ringar.launchers.plan import addresses

# A name, or an address; of IPv6, only in brackets, for "::1:4" could mean anything.
_ENTRY = re.compile(r"(?P<name>\[[0-9A-Fa-f:.%\w]+\]|[^\s:,=\[\]]+)(?::(?P<slots>[^\s:]*))?")
_LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain", "::1"})


@dataclass(frozen=True)
class Host:
    """One host and the number of ranks that it takes."""

    name: str
    slots: int = 1

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return f"{name}:{self.slots}"


def parse(text: str) -> tuple[Host, ...]:
    """Parse the value of `-H`: names with their slots, separated by commas.

    Args:
        text: for example `"h1:4,h2:4"`; a host without a number has one slot.

    Raises:
        UsageError: the text has another form, or names a host twice.
    """
    hosts = []
    for entry in text.split(","):
        match = _ENTRY.fullmatch(entry.strip())
        if match is None:
            raise UsageError(
                f"-H: expected hosts as in h1:4,h2:4, received {entry!r} in {text!r}; "
                "write an IPv6 address in brackets"
            )
        hosts.append(_host(match["name"], match["slots"], "-H"))
    return _without_duplicates(hosts, "-H")


def read(path: Path) -> tuple[Host, ...]:
    """Read a host file.

    Each line holds `host`, `host slots=4`, `host slots=4 max_slots=8` or `host:4`; a comment begins
    with `#`. A host without a number may have a line for each slot, as in a file of PBS.

    Raises:
        UsageError: the file cannot be read, names no host, names one twice, or has a line of
            another form; the message names the file and the line.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text"
        raise UsageError(f"--hostfile: cannot read {str(path)!r}: {reason}") from error
    hosts = of_lines(lines, str(path))
    if not hosts:
        raise UsageError(f"{path}: expected a host per line, as in: h1 slots=4; received none")
    return hosts


def of_lines(lines: Sequence[str], source: str) -> tuple[Host, ...]:
    """Return the hosts in the lines of a host file, or of a program that prints such lines.

    Raises:
        UsageError: a line has another form, or a host is named twice.
    """
    hosts: dict[str, Host] = {}
    first_line: dict[str, int] = {}
    bare: set[str] = set()  # names without slots, of which each line is a slot
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        host = _line(text, f"{source}:{number}")
        if host.name not in hosts:
            hosts[host.name] = host
            first_line[host.name] = number
            bare |= {host.name} & {text}
        elif host.name in bare and text == host.name:
            hosts[host.name] = Host(host.name, hosts[host.name].slots + 1)
        else:
            raise UsageError(
                f"{source}:{number}: expected each host once with its slots, received "
                f"{host.name!r} again, after line {first_line[host.name]}; give it more slots, or "
                "a line per slot"
            )
    return tuple(hosts.values())


def _line(text: str, where: str) -> Host:
    entry, *options = text.split()
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise UsageError(f"{where}: expected a host, as in: h1 slots=4; received {entry!r}")
    slots, most = match["slots"], None
    for option in options:
        key, equals, value = option.partition("=")
        key = key.replace("-", "_")
        if not equals or key not in ("slots", "max_slots"):
            raise UsageError(f"{where}: expected slots=N or max_slots=N, received {option!r}")
        if key == "max_slots":
            most = _host(match["name"], value, where, "max_slots=N").slots
        elif slots is not None:
            raise UsageError(f"{where}: expected the slots once, received {text!r}")
        else:
            slots = value
    host = _host(match["name"], slots, where, "slots=N")
    if most is not None and host.slots > most:
        raise UsageError(f"{where}: expected slots up to max_slots={most}, received {host.slots}")
    return host


def _host(name: str, slots: str | None, where: str, form: str = "host:N") -> Host:
    if slots is not None and not (slots.isascii() and slots.isdecimal() and int(slots) > 0):
        raise UsageError(
            f"{where}: expected {form} with the number of slots, 1 or more, received {slots!r}"
        )
    return Host(name.strip("[]"), 1 if slots is None else int(slots))


def _without_duplicates(hosts: Sequence[Host], where: str) -> tuple[Host, ...]:
    names = set()
    for host in hosts:
        if host.name in names:
            raise UsageError(
                f"{where}: expected each host once, received {host.name!r} twice; "
                "give it more slots instead"
            )
        names.add(host.name)
    return tuple(hosts)


def collect(names: Sequence[str]) -> tuple[Host, ...]:
    """Count the slots of hosts in a list with one name per slot, as schedulers write it."""
    slots: dict[str, int] = {}
    for name in names:
        slots[name] = slots.get(name, 0) + 1
    return tuple(Host(name, number) for name, number in slots.items())


def fill(hosts: Sequence[Host], num_proc: int | None, source: str) -> tuple[Host, ...]:
    """Lay `num_proc` ranks out on `hosts`, in their order.

    Args:
        hosts: the hosts, with their slots.
        num_proc: the number of ranks; None for one per slot.
        source: the origin of the hosts, for the message.

    Returns:
        The hosts that get ranks; `slots` is the number that each gets.

    Raises:
        UsageError: there are more ranks than slots.
    """
    total = sum(host.slots for host in hosts)
    if num_proc is None:
        return tuple(hosts)
    if num_proc > total:
        raise UsageError(
            f"-np: expected at most {total} ranks, the slots of {len(hosts)} "
            f"host{'' if len(hosts) == 1 else 's'} ({source}), received {num_proc}; "
            "name more hosts or give them more slots"
        )
    layout = []
    for host in hosts:
        if num_proc > 0:
            layout.append(Host(host.name, min(host.slots, num_proc)))
        num_proc -= host.slots
    return tuple(layout)


@functools.cache
def is_this_host(name: str) -> bool:
    """Return whether `name` is a name or an address of this host."""
    hostname = socket.gethostname()
    # In a container the host may have another name than SLURM knows.
    names = {hostname, hostname.partition(".")[0], os.environ.get("SLURMD_NODENAME")}
    if name in _LOCAL_NAMES or name in names or name.partition(".")[0] == hostname:
        return True
    interfaces = addresses.of_interfaces().values()
    local_addresses = {address.partition("%")[0] for group in interfaces for address in group}
    with contextlib.suppress(OSError, UnicodeError):  # an alias that ssh knows
        targets = {address[0] for *_, address in socket.getaddrinfo(name, None)}
        return bool(targets) and targets <= local_addresses
    return False
