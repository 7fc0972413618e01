"""The command line of `ringarrun`: its parser, and the request that it becomes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NoReturn

from ringar.launchers.command_line import option_groups
from ringar.launchers.command_line import option_types as types
from ringar.launchers.command_line.completion import SHELLS
from ringar.launchers.command_line.help_text import DESCRIPTION, EPILOG, SUMMARY
from ringar.launchers.errors import UsageError
from ringar.launchers.plan import hosts
from ringar.launchers.plan.request import Request
from ringar.launchers.plan.suggest import close_to, did_you_mean

#: The counterparts of torchrun's options that are spelled differently.
_OF_TORCHRUN = {"--nproc-per-node": ["-np"], "--nnodes": ["--hosts"]}


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, with a suggestion for an unknown option.

    `source` names the file that the options come from, "" for the command line.
    """

    source = ""

    def error(self, message: str) -> NoReturn:
        end = " See" if message.endswith("?") else "; see"
        self.exit(2, f"ringarrun: error: {self._origin()}{message}{end} ringarrun --help\n")

    def _origin(self) -> str:
        return f"{self.source}: " if self.source else ""

    def parse_args(self, *args: Any, **kwargs: Any) -> argparse.Namespace:  # type: ignore[override]
        try:
            options, extras = self.parse_known_args(*args, **kwargs)
        except UsageError as error:
            self.exit(error.code, f"ringarrun: error: {self._origin()}{error}\n")
        if extras:
            name = extras[0].partition("=")[0]
            names = [option for action in self._actions for option in action.option_strings]
            close = _OF_TORCHRUN.get(name.replace("_", "-")) or close_to(name, names)
            self.error(f"unknown option {name}{did_you_mean(close)}")
        return options

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Drop abbreviations of options with one dash, which `allow_abbrev` does not turn off."""
        matches = super()._get_option_tuples(option_string)
        return [
            match for match in matches if option_string.startswith(match[1]) and match[0].nargs != 0
        ]


class _Summary(argparse.Action):
    """Print `--help`, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(SUMMARY, end="")
        parser.exit()


def parser(source: str = "") -> _Parser:
    """Return the parser of the command line, or of options from the file `source`."""
    parser = _Parser(
        prog="ringarrun",
        usage="ringarrun -np N [options] [--] train.py | program [argument ...]\n"
        "       ringarrun -np N [options] -m package.module [argument ...]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.source = source
    option_groups.add_rank_options(parser)
    option_groups.add_host_options(parser)
    option_groups.add_elastic_options(parser)
    option_groups.add_output_options(parser)
    option_groups.add_autotune_options(parser)
    option_groups.add_timeouts(parser)
    group = parser.add_argument_group("about")
    group.add_argument("-h", "--help", action=_Summary, nargs=0, help="the most used, on a screen")
    group.add_argument("--help-all", action="help", help="show this, and exit")
    group.add_argument(
        "-cb",
        "--check-build",
        action="store_true",
        help="report what ringar finds on this machine, and exit",
    )
    group.add_argument(
        "--calibrate",
        action="store_true",
        help="measure what is best on this machine for -np ranks (default: 2), keep it for the "
        "jobs to come, and exit; the first job with so many ranks does the same by itself",
    )
    group.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="take options from a file, FILE.toml or FILE.yaml: num-proc: 4; those of the command "
        "line win, and --dry-run says where each comes from",
    )
    group.add_argument(
        "--print-completion",
        metavar=f"{{{','.join(SHELLS)}}}",
        type=types.one_of(*SHELLS),
        help="print the completion of options for a shell, and exit; needs pip install shtab",
    )
    group.add_argument("-v", "--version", action="store_true", help="print the version, and exit")
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        help="the script, module or program that every rank runs, and its arguments",
    )
    return parser


#: The files of `--autotune`, and the variables that name them.
_AUTOTUNE = {
    "autotune_log_file": "RINGAR_AUTOTUNE_LOG",
    "autotune_settings_file": "RINGAR_AUTOTUNE_SETTINGS",
}


def _autotune(options: argparse.Namespace) -> list[str]:
    """Return the variables by which the ranks hear of `--autotune`.

    Raises:
        UsageError: an option of it is given without it.
    """
    paths = {name: path for name in _AUTOTUNE if (path := getattr(options, name)) is not None}
    if options.autotune:  # ranks may run in another folder
        return ["RINGAR_AUTOTUNE=1", *(f"{_AUTOTUNE[n]}={p.resolve()}" for n, p in paths.items())]
    if paths:
        names = ", ".join("--" + name.replace("_", "-") for name in paths)
        raise UsageError(f"{names}: expected --autotune, whose search it describes")
    return []


def request(options: argparse.Namespace) -> Request:
    """Turn the parsed options into a request.

    Raises:
        UsageError: they contradict each other, or the host file cannot be read.
    """
    command = tuple(options.command)
    if command[:1] == ("--",):
        command = command[1:]
    if options.hosts and options.hostfile:
        raise UsageError("expected -H or --hostfile, received both; name all hosts in one of them")
    named = hosts.read(options.hostfile) if options.hostfile else options.hosts
    return Request(
        num_proc=options.num_proc,
        command=command,
        module=options.module,
        hosts=named,
        source=str(options.hostfile or "-H"),
        launcher=options.launcher,
        link=options.link,
        interfaces=tuple(name for text in options.interfaces for name in text.split(",") if name),
        ssh_command=options.ssh_command,
        ssh_port=options.ssh_port,
        ssh_identity=options.ssh_identity_file,
        mpi_args=options.mpi_args,
        exports=(*options.exports, *_autotune(options)),
        environment=options.environment,
        bind_to=options.bind_to,
        gpus=options.gpus,
        prefix=options.prefix,
        output_folder=options.output_filename,
        start_timeout=options.start_timeout,
        deadline=options.deadline,
        stall_warning=options.stall_warning,
        failure_grace=options.failure_grace,
        kill_grace=options.kill_grace,
        max_failures=options.max_failures,
        verbose=options.verbose,
        dry_run=options.dry_run,
        timeline=options.timeline_filename.resolve() if options.timeline_filename else None,
        min_np=options.min_np,
        max_np=options.max_np,
        discovery_script=options.host_discovery_script,
        reset_limit=options.reset_limit,
        elastic_timeout=options.elastic_timeout,
        elastic_dir=options.elastic_dir.resolve() if options.elastic_dir else None,
    )
