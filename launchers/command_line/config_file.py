"""Options from a file: `ringarrun --config job.toml`.

The file maps the names of options, without their dashes, to values. Its options become words of a
command line and pass the same parser. The command line wins over the file, the file over the
defaults; options that may be repeated add up.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ringar.launchers.command_line import options as options_module
from ringar.launchers.errors import UsageError
from ringar.launchers.plan.suggest import close_to, did_you_mean

#: Destinations of options that do something else than start a job; no file has them.
_OF_THE_COMMAND_LINE = {
    "help",
    "help_all",
    "version",
    "check_build",
    "calibrate",
    "config",
    "print_completion",
}
#: How a list in the file becomes the one value of an option.
_JOINED = {"hosts": ",".join, "mpi_args": shlex.join}
#: An option on the command line also takes the place of these options in the file.
_REPLACED = {"hosts": {"hostfile"}, "hostfile": {"hosts"}, "command": {"module"}}
#: Options that may be repeated: those of the file come before those of the command line.
_REPEATED = {"exports", "interfaces"}
_COMMAND = "command"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line, and the file that its `--config` names.

    Returns:
        The options; `sources` maps the names of those that are not defaults to a text that says
        where each comes from.

    Raises:
        UsageError: the file cannot be read, or has what is no option of a job.
    """
    parser = options_module.parser()
    options = parser.parse_args(arguments)
    options.sources = {}
    if options.config is None:
        return options
    line = _given(arguments)
    from_file = _given(_words(read(options.config), parser, options.config), str(options.config))
    for dest in {other for name in line for other in _REPLACED.get(name, ())}:
        from_file.pop(dest, None)
    for dest, value in {**from_file, **line}.items():
        origin = "the command line" if dest in line else str(options.config)
        if dest in _REPEATED and dest in line and dest in from_file:
            value = from_file[dest] + line[dest]
            origin = f"{options.config} and {origin}"
        setattr(options, dest, value)
        options.sources[dest] = origin
    return options


def explain(options: argparse.Namespace) -> list[str]:
    """Return a comment of a shell for each option that is not a default: its value and source."""
    sources = {name: source for name, source in options.sources.items() if name != "dry_run"}
    names = {
        action.dest: next((n for n in action.option_strings if n.startswith("--")), "-x")
        for action in options_module.parser()._actions
        if action.dest in sources
    }
    names[_COMMAND] = _COMMAND
    return [
        f"# {name} {_text(getattr(options, dest))}: from {sources[dest]}"
        for dest, name in names.items()
        if dest in sources
    ]


def read(path: Path) -> Mapping[str, Any]:
    """Read a file of options, in YAML (`.yaml`, `.yml`) or TOML (`.toml`).

    Raises:
        UsageError: it has another form, or the package that reads it is absent.
    """
    suffix = path.suffix.lower()
    if suffix not in (".toml", ".yaml", ".yml"):
        raise UsageError(f"--config: expected a file *.toml, *.yaml or *.yml, received {path}")
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text"
        raise UsageError(f"--config: cannot read {str(path)!r}: {reason}") from None
    settings = _toml(text, path) if suffix == ".toml" else _yaml(text, path)
    if not isinstance(settings, Mapping):
        raise UsageError(f"{path}: expected names of options with values, received {settings!r}")
    return settings


def _toml(text: str, path: Path) -> object:
    try:
        tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ModuleNotFoundError:
        raise _lacking("tomli", path) from None
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise UsageError(f"{path}: expected TOML, received: {error}") from None


def _yaml(text: str, path: Path) -> object:
    try:
        import yaml
    except ModuleNotFoundError:
        raise _lacking("pyyaml", path) from None
    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise UsageError(
            f"{path}: expected YAML, received: {' '.join(str(error).split())}"
        ) from None


def _lacking(package: str, path: Path) -> UsageError:
    return UsageError(
        f"--config: expected the package {package} to read {path}, found none; run: "
        f"pip install {package} (the extra `launcher` has it)"
    )


def _given(words: Sequence[str] | None, source: str = "") -> dict[str, Any]:
    """Return the options in `words`, without the defaults of all others."""
    parser = options_module.parser(source)
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    given = vars(parser.parse_args(words))
    if given[_COMMAND][:1] == ["--"]:
        given[_COMMAND] = given[_COMMAND][1:]
    return {
        d: value
        for d, value in given.items()
        if d != "config" and not (d == _COMMAND and not value)
    }


def _words(settings: Mapping[str, Any], parser: argparse.ArgumentParser, path: Path) -> list[str]:
    """Return the words of the command line that stand for a file."""
    command: list[str] = []
    words: list[str] = []
    for key, value in settings.items():
        if key == _COMMAND:
            if not isinstance(value, (str, list)):
                raise UsageError(f"{path}: command: expected words or a list, received {value!r}")
            command = shlex.split(value) if isinstance(value, str) else [str(v) for v in value]
        else:
            words += _option(str(key), value, parser, path)
    return [*words, *(["--", *command] if command else [])]


def _option(key: str, value: Any, parser: argparse.ArgumentParser, path: Path) -> list[str]:
    actions = parser._option_string_actions
    name = next((n for n in (f"--{key.replace('_', '-')}", f"-{key}") if n in actions), "")
    if not name:
        names = sorted({option.lstrip("-") for option in actions})
        raise UsageError(f"{path}: unknown option {key}{did_you_mean(close_to(key, names))}")
    action = actions[name]
    if action.dest in _OF_THE_COMMAND_LINE:
        raise UsageError(f"{path}: expected {name} on the command line only")
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise UsageError(f"{path}: {key}: expected true or false, received {value!r}")
        negative = f"--no-{key}"
        return [name] if value else [negative] if negative in action.option_strings else []
    if isinstance(value, bool) or value is None:
        raise UsageError(f"{path}: {key}: expected {action.metavar}, received {value!r}")
    if isinstance(value, Mapping):
        sign = ":" if action.dest == "hosts" else "="
        pairs = value.items()
        value = [part if item is None else f"{part}{sign}{item}" for part, item in pairs]
    if not isinstance(value, list):
        return [f"{name}={value}"]
    texts = [str(item) for item in value]
    if action.dest in _REPEATED:
        return [f"{name}={text}" for text in texts]
    if action.dest not in _JOINED:
        raise UsageError(f"{path}: {key}: expected one {action.metavar}, received {value!r}")
    return [f"{name}={_JOINED[action.dest](texts)}"]


def _text(value: object) -> str:
    return shlex.join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
