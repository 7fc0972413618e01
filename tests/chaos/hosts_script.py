"""Scripts that tell an elastic job its hosts, which come, go and are unknown for a while."""

from __future__ import annotations

import random
from pathlib import Path

HOSTS = 3
HERE = "localhost"

#: Answers of a script that does not know the hosts.
FAILURES = ("exit 3", "echo null", "echo host0:x", "echo 'no route to the scheduler'", "kill $$")

_SCRIPT = """#!/bin/sh
# Once a fault has happened, the next answer each time.
number=0
if [ -e "{happened}" ]; then
    number=$(($(cat "{count}" 2> /dev/null || echo 0) + 1))
    echo $number > "{count}"
fi
case $number in
{cases}
esac
"""


def answers(rng: random.Random, kind: str, hosts: bool) -> tuple[int, tuple[str, ...], int]:
    """Return the number of slots at first, the commands of the answers, the number in the end."""
    slots = [rng.choice([1, 2]) for _ in range(HOSTS)] if hosts else [rng.choice([2, 3])]
    rest = _fewer(rng, slots)
    first, last = {"hosts come": (rest, slots), "hosts go": (slots, rest)}.get(kind, (rest, rest))
    commands = [_tell(first)]
    if kind == "no hosts for a moment":
        commands += ["true"] * rng.choice([1, 1, 2, 4])
    elif kind == "discovery fails":
        commands += rng.choices(FAILURES, k=rng.choice([1, 2, 4]))
    elif kind == "discovery hangs":
        # For as long as the job lasts, or until the next answer.
        commands.append(rng.choice([f"sleep 1000; {_tell(first)}", f"sleep 3; {_tell(first)}"]))
    return sum(first), (*commands, _tell(last)), sum(last)


def _fewer(rng: random.Random, slots: list[int]) -> list[int]:
    """Return slots of the same hosts, some of which are gone, perhaps that of the launcher."""
    if len(slots) == 1:
        return [1]
    losses = rng.choice([{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}])
    return [0 if number in losses else count for number, count in enumerate(slots)]


def _tell(slots: list[int]) -> str:
    """Return the command that prints the hosts."""
    names = [HERE] if len(slots) == 1 else [f"host{number}" for number in range(len(slots))]
    lines = [f"{name}:{count}" for name, count in zip(names, slots, strict=True) if count]
    return "; ".join(f"echo {line}" for line in lines)


def write(folder: str, happened: str, commands: tuple[str, ...]) -> str:
    """Write the script into a folder; return its path.

    Args:
        folder: the folder.
        happened: the file that exists once the fault has happened.
        commands: the answers.
    """
    cases = [f"{number}) {command} ;;" for number, command in enumerate(commands[:-1])]
    path = Path(folder) / "hosts.sh"
    path.write_text(
        _SCRIPT.format(
            happened=happened,
            count=f"{folder}/count",
            cases="\n".join([*cases, f"*) {commands[-1]} ;;"]),
        )
    )
    path.chmod(0o755)
    return str(path)
