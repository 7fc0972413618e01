"""`horovodrun`: the launcher of ringar with Horovod's options.

Options that both launchers have are passed on. The others are translated; or have no effect here,
which a line on standard error tells; or are refused with the reason.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from ringar.horovod.runner import PREFIX
from ringar.launchers.command_line import cli
from ringar.launchers.command_line import options as of_ringar
from ringar.launchers.plan.job_plan import PREFIX_VARIABLE

_MIB = 1 << 20
_NEVER = "1000000000"  # seconds


def _as(option: str) -> Callable[[str], list[str]]:
    return lambda value: [option, value]


def _sets(variable: str) -> Callable[[str], list[str]]:
    return lambda value: ["-x", f"{variable}={value}"]


def _unless_zero(option: str) -> Callable[[str], list[str]]:
    return lambda value: [option, value] if float(value) else []


# fmt: off
#: Horovod's options that ringarrun has under the same name.
_SHARED = frozenset((
    "-v", "--version", "-cb", "--check-build", "-np", "--num-proc", "-H", "--hosts",
    "-hostfile", "--hostfile", "--start-timeout", "--network-interface", "--network-interfaces",
    "--output-filename", "--verbose", "-p", "--ssh-port", "-i", "--ssh-identity-file",
    "--autotune", "--autotune-log-file", "--min-np", "--max-np", "--host-discovery-script",
    "--reset-limit", "--elastic-timeout", "--timeline-filename",
    "--stall-check-warning-time-seconds", "--mpi-args",
))
# fmt: on
#: Options with a value.
_TRANSLATED: dict[str, Callable[[str], list[str]]] = {
    "--min-num-proc": _as("--min-np"),
    "--max-num-proc": _as("--max-np"),
    "--fusion-threshold-mb": lambda mib: [
        "-x",
        f"HOROVOD_FUSION_THRESHOLD={int(float(mib) * _MIB)}",
    ],
    "--log-level": lambda level: ["-x", f"HOROVOD_LOG_LEVEL={level}"],
    "--stall-check-shutdown-time-seconds": _unless_zero("--deadline"),
    "--autotune-warmup-samples": _sets("RINGAR_AUTOTUNE_WARMUP_SAMPLES"),
    "--autotune-steps-per-sample": _sets("RINGAR_AUTOTUNE_STEPS_PER_SAMPLE"),
    "--autotune-bayes-opt-max-samples": _sets("RINGAR_AUTOTUNE_BAYES_OPT_MAX_SAMPLES"),
}
#: Options without a value.
_FLAGS: dict[str, list[str]] = {
    "--gloo": [],
    "--tcp": [],
    "--mpi": ["--launcher", "mpirun"],
    "--stall-check": [],
    "--no-stall-check": ["--stall-warning", _NEVER],
}
_NO_COORDINATOR = "ringar has no coordinator"
_CHOSEN = "ringar chooses its algorithms by a cost model"
#: Options with a value that have no effect, and why.
_IDLE: dict[str, str] = {
    "--cycle-time-ms": _NO_COORDINATOR,
    "--cache-capacity": _NO_COORDINATOR,
    "--num-nccl-streams": "ringar uses one stream",
    "--thread-affinity": "--bind-to binds ranks to CPUs",
    "--gloo-timeout-seconds": "--deadline limits how long collectives wait",
    "--autotune-gaussian-process-noise": "the search has no Gaussian process",
}
_HELP = ["-h", "--help"]
_DEFAULT = "the default"
_COOLDOWN = "--blacklist-cooldown-range"  # has two values
_COOLDOWN_REASON = "slots cool down by a rule of ringar"
#: Options without a value that have no effect, and why.
_IDLE_FLAGS: dict[str, str] = {
    "--disable-cache": "nothing is cached",
    "--hierarchical-allreduce": _CHOSEN,
    "--no-hierarchical-allreduce": _CHOSEN,
    "--hierarchical-allgather": _CHOSEN,
    "--no-hierarchical-allgather": _CHOSEN,
    "--torus-allreduce": _CHOSEN,
    "--no-torus-allreduce": _CHOSEN,
    "--no-autotune": "",
    "--timeline-mark-cycles": "ringar has no cycles",
    "--no-timeline-mark-cycles": "",
    "--mpi-threads-disable": "one thread calls MPI",
    "--no-mpi-threads-disable": "",
    "--log-with-timestamp": "configure Python's logging for times",
    "--log-without-timestamp": "",
    "--log-hide-timestamp": "",
    "--no-log-hide-timestamp": "configure Python's logging for times",
    "--prefix-output-with-timestamp": "lines have the number of their rank only",
    "-prefix-timestamp": "lines have the number of their rank only",
}
#: Options that are refused: the number of their values, and why.
_REFUSED: dict[str, tuple[int, str]] = {
    "--jsrun": (0, "inside LSF ringar starts ranks by blaunch: leave it out"),
    "--config-file": (1, "write its settings as options, here or for --config"),
    "--slots-per-host": (1, "let the discovery script print host:slots"),
    "--binding-args": (1, "pass --bind-to core, numa or none"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `horovodrun` with `arguments` (default: sys.argv) and return its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] in (["-h"], ["--help"]):
        print(help_text(), end="")
        return 0
    try:
        translated, notes = translate(words, os.environ)
    except ValueError as error:
        print(f"horovodrun: error: {error}", file=sys.stderr)
        return 2
    if translated == _HELP:
        print(help_text(), end="")
        return 0
    for note in notes:
        print(f"horovodrun: {note}", file=sys.stderr)
    os.environ[PREFIX_VARIABLE] = PREFIX
    return cli.main(translated)


def _add(
    group: argparse._ArgumentGroup,
    names: Sequence[str],
    count: int,
    text: str | None,
    metavar: str = "VALUE",
) -> None:
    """Add an option with `count` values to the text of help."""
    if count:
        group.add_argument(*names, nargs=count, metavar=metavar, help=text)
    else:
        group.add_argument(*names, action="store_true", help=text)


def help_text() -> str:
    """Return the text of `horovodrun --help`: Horovod's options, by what becomes of them."""
    parser = argparse.ArgumentParser(
        prog="horovodrun",
        usage="horovodrun -np N [options] program [argument ...]",
        description="Start a program on N ranks by ringarrun, with the options of Horovod or of "
        "ringarrun (ringarrun --help-all).",
        epilog="docs/migrate-from-horovod.md says what else differs.",
        add_help=False,
    )
    group = parser.add_argument_group("options that ringarrun has, too")
    _add(group, _HELP, 0, "print this, and exit")
    for action in of_ringar.parser()._actions:
        names = [name for name in action.option_strings if name in _SHARED]
        if names:
            _add(group, names, 0 if action.nargs == 0 else 1, action.help, str(action.metavar))
    group = parser.add_argument_group("options that are translated")
    for name, option in _TRANSLATED.items():
        example = "INFO" if name == "--log-level" else "64"
        _add(group, [name], 1, f"{name} {example} becomes {' '.join(option(example))}")
    for name, words in _FLAGS.items():
        _add(group, [name], 0, f"becomes {' '.join(words)}" if words else _DEFAULT)
    group = parser.add_argument_group("options without effect")
    _add(group, [_COOLDOWN], 2, _COOLDOWN_REASON)
    for name, why in _IDLE.items():
        _add(group, [name], 1, why)
    for name, why in _IDLE_FLAGS.items():
        _add(group, [name], 0, why or _DEFAULT)
    group = parser.add_argument_group("options that are refused")
    for name, (count, why) in _REFUSED.items():
        _add(group, [name], count, why)
    return parser.format_help()


def translate(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the arguments for `ringarrun`, and notes about options that have no effect.

    Args:
        arguments: those of `horovodrun`.
        environ: the environment, some of whose HOROVOD_ variables stand for options.

    Raises:
        ValueError: an option is refused, or lacks its value.
    """
    actions = of_ringar.parser()._option_string_actions
    result: list[str] = []
    notes: list[str] = []
    words = list(arguments)
    while words and words[0].startswith("-") and words[0] != "--":
        word = words.pop(0)
        name, equals, inline = word.partition("=")
        values = iter([inline] if equals else _next_words(words))
        if name in _HELP:
            return _HELP, []
        if name in _REFUSED:
            raise ValueError(f"{name} is not supported: {_REFUSED[name][1]}")
        if name in _TRANSLATED:
            result += _TRANSLATED[name](_value(name, values))
        elif name in _FLAGS:
            result += _FLAGS[name]
        elif name in actions:
            result.append(word)
            if not equals and actions[name].nargs != 0:
                result.append(_value(name, values))
        elif name == _COOLDOWN:
            _value(name, values)
            _value(name, iter(_next_words(words)))
            notes.append(f"{name} has no effect: {_COOLDOWN_REASON}")
        elif name in _IDLE:
            _value(name, values)
            notes.append(f"{name} has no effect: {_IDLE[name]}")
        elif name in _IDLE_FLAGS:
            notes += [f"{name} has no effect: {why}"] if (why := _IDLE_FLAGS[name]) else []
        else:
            result.append(word)  # ringarrun says that it does not know it
    return [*result, *_implied(result, environ), *words], notes


def _next_words(words: list[str]) -> Iterator[str]:
    """Take the words that an option asks for off the list."""
    while words:
        yield words.pop(0)


def _value(name: str, values: Iterator[str]) -> str:
    value = next(values, None)
    if value is None:
        raise ValueError(f"{name} expected a value, received none")
    return value


def _values(words: Sequence[str]) -> dict[str, str]:
    """Return the word behind each option, or the text behind its equals sign."""
    values = {}
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name, equals, inline = word.partition("=")
        values[name] = inline if equals else following
    return values


def _implied(result: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the options that Horovod's defaults and variables stand for."""
    values = _values(result)
    implied: list[str] = []
    if "--gpus" not in values and not environ.get("RINGAR_GPUS"):
        implied.append("--gpus=all")  # scripts choose their GPU by local_rank()
    if "--host-discovery-script" in values and "--min-np" not in values:
        numbers = [values[name] for name in ("-np", "-n", "--num-proc") if name in values]
        implied += [f"--min-np={number}" for number in numbers[:1]]
    variables = {
        "--timeline-filename": environ.get("HOROVOD_TIMELINE", ""),
        "--start-timeout": environ.get("HOROVOD_START_TIMEOUT", ""),
        "--elastic-timeout": environ.get("HOROVOD_ELASTIC_TIMEOUT", ""),
    }
    for option, value in variables.items():
        if value and value != "DYNAMIC" and option not in values:
            implied.append(f"{option}={value}")
    return implied


if __name__ == "__main__":
    sys.exit(main())
