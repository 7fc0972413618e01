"""The request of a user: the options of `ringarrun` as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ringar.launchers.plan.hosts import Host


@dataclass(frozen=True)
class Request:
    """The options of one call of `ringarrun`, one field for each.

    `command` holds the words behind the options, the first of which is a module with `module`.
    `hosts` holds the hosts of `-H` or `--hostfile` and `source` names the option; without either,
    `hosts` is empty. `num_proc` is None where the number of slots decides. A job with `min_np` is
    elastic.
    """

    num_proc: int | None
    command: tuple[str, ...]
    module: bool = False
    hosts: tuple[Host, ...] = ()
    source: str = ""
    launcher: str = "auto"
    link: str = "auto"
    interfaces: tuple[str, ...] = ()
    ssh_command: str = ""
    ssh_port: int | None = None
    ssh_identity: Path | None = None
    mpi_args: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()
    environment: bool = True  # whether ranks on other hosts get that of the launcher
    bind_to: str | None = None
    gpus: str | None = None
    prefix: bool | None = None
    output_folder: Path | None = None
    start_timeout: float | None = None
    deadline: float | None = None
    stall_warning: float | None = None
    failure_grace: float = 3.0
    kill_grace: float | None = None
    max_failures: int = 0
    verbose: bool = False
    dry_run: bool = False
    timeline: Path | None = None
    min_np: int | None = None
    max_np: int | None = None
    discovery_script: str | None = None
    reset_limit: int | None = None
    elastic_timeout: float = 600.0
    elastic_dir: Path | None = None
