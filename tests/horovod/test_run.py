"""`horovodrun`, and `run`: options, arguments, jobs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest

from ringar.horovod.common import environment
from ringar.horovod.runner import launch, run
from ringar.launchers.command_line import options

pytestmark = pytest.mark.ranks(1)


def translated(*arguments: str, **environ: str) -> list[str]:
    return launch.translate(arguments, environ)[0]


#: What `horovodrun` is given, and what `ringarrun` gets.
OPTIONS = [
    ("-np 2 python train.py -np 3", "-np 2 --gpus=all python train.py -np 3"),
    ("--num-proc=2 -- a", "--num-proc=2 --gpus=all -- a"),
    ("-np 2 --gpus each a", "-np 2 --gpus each a"),
    ("-np 4 --min-num-proc 2 --max-num-proc=8 a", "-np 4 --min-np 2 --max-np 8 --gpus=all a"),
    (
        "-np 4 --host-discovery-script d.sh a",
        "-np 4 --host-discovery-script d.sh --gpus=all --min-np=4 a",
    ),
    (
        "--host-discovery-script=d.sh --num-proc=4 a",
        "--host-discovery-script=d.sh --num-proc=4 --gpus=all --min-np=4 a",
    ),
    ("-np 2 --gloo --tcp --verbose a", "-np 2 --verbose --gpus=all a"),
    ("-np 2 --mpi -H h:2 a", "-np 2 --launcher mpirun -H h:2 --gpus=all a"),
    ("-np 1 --no-stall-check a", "-np 1 --stall-warning 1000000000 --gpus=all a"),
    ("-np 1 --stall-check-shutdown-time-seconds 0 a", "-np 1 --gpus=all a"),
    (
        "-np 1 --stall-check-shutdown-time-seconds 9 a",
        "-np 1 --deadline 9 --gpus=all a",
    ),
    (
        "-np 1 --fusion-threshold-mb 32 --log-level INFO a",
        "-np 1 -x HOROVOD_FUSION_THRESHOLD=33554432 -x HOROVOD_LOG_LEVEL=INFO --gpus=all a",
    ),
    (
        "-np 2 --autotune --autotune-log-file=a.csv --autotune-steps-per-sample 5 a",
        "-np 2 --autotune --autotune-log-file=a.csv -x RINGAR_AUTOTUNE_STEPS_PER_SAMPLE=5 "
        "--gpus=all a",
    ),
    (
        "--autotune-warmup-samples 1 --autotune-bayes-opt-max-samples=9 --no-autotune a",
        "-x RINGAR_AUTOTUNE_WARMUP_SAMPLES=1 -x RINGAR_AUTOTUNE_BAYES_OPT_MAX_SAMPLES=9 "
        "--gpus=all a",
    ),
    ("-cb", "-cb --gpus=all"),
]


def test_options() -> None:
    for line, expected in OPTIONS:
        words = translated(*line.split())
        assert words == expected.split()
        options.parser().parse_args(words)


def test_help_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main(["-np", "2", "--help", "--jsrun"]) == 0
    text = capsys.readouterr().out
    tables = (launch._TRANSLATED, launch._FLAGS, launch._IDLE, launch._IDLE_FLAGS, launch._REFUSED)
    names = {name for table in tables for name in table} | launch._SHARED
    listed = set(re.findall(r"-[-\w]+", text))
    assert names | {"--blacklist-cooldown-range"} <= listed
    assert set(options.parser()._option_string_actions) >= launch._SHARED
    flat = " ".join(text.split())
    assert "--fusion-threshold-mb 64 becomes -x HOROVOD_FUSION_THRESHOLD=67108864" in flat
    assert all(why in flat for why in launch._IDLE.values())


def test_options_without_effect_say_so() -> None:
    idle = [word for name in launch._IDLE for word in (name, "1")]
    words, notes = launch.translate(
        ["-np", "1", *idle, *launch._IDLE_FLAGS, "--blacklist-cooldown-range", "1", "2", "a"], {}
    )
    actions = set(options.parser()._option_string_actions)
    assert words[-1] == "a"
    options_in_notes = {note.partition(" ")[0] for note in notes}
    expected = {n for n in launch._IDLE if n not in actions}
    expected |= {n for n, why in launch._IDLE_FLAGS.items() if why and n not in actions}
    assert options_in_notes == expected | {"--blacklist-cooldown-range"}
    assert all(" has no effect: " in note for note in notes)


def test_variables_of_autotune_have_those_of_ringar_as_counterparts() -> None:
    names = ("", "_LOG", "_WARMUP_SAMPLES", "_STEPS_PER_SAMPLE", "_BAYES_OPT_MAX_SAMPLES")
    originals = {f"HOROVOD_AUTOTUNE{name}": str(i) for i, name in enumerate(names)}
    environ = {**originals, "RINGAR_AUTOTUNE_LOG": "own"}
    environment.apply(environ)
    counterparts = {f"RINGAR_AUTOTUNE{name}": str(i) for i, name in enumerate(names)}
    assert environ == {**originals, **counterparts, "RINGAR_AUTOTUNE_LOG": "own"}


def test_refused_options(capsys: pytest.CaptureFixture[str]) -> None:
    for option, (values, why) in launch._REFUSED.items():
        assert launch.main(["-np", "1", option, *["value"] * values, "true"]) == 2
        assert f"{option} is not supported: {why}" in capsys.readouterr().err
    assert launch.main(["-np"]) == 2
    assert "-np expected a value" in capsys.readouterr().err


def test_variables_stand_for_options() -> None:
    variables = {"HOROVOD_TIMELINE": "t.json", "HOROVOD_START_TIMEOUT": "3", "RINGAR_GPUS": "each"}
    assert translated("-np", "1", "a", **variables) == [
        *("-np", "1", "--timeline-filename=t.json", "--start-timeout=3", "a")
    ]
    assert translated("--timeline-filename", "x", "a", HOROVOD_TIMELINE="t.json") == [
        *("--timeline-filename", "x", "--gpus=all", "a")
    ]
    assert translated("a", HOROVOD_TIMELINE="DYNAMIC") == ["--gpus=all", "a"]


def test_wrong_arguments() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"min_num_proc": 1, "slots": 2}, "the slots in `hosts` or `hostfile`, received slots=2"),
        ({"hosts": "a:1", "hostfile": "f"}, "`hosts` or `hostfile`"),
        ({"use_gloo": True, "use_mpi": True}, "`use_gloo` or `use_mpi`"),
        ({"executable": "/bin/other"}, "expected this Python"),
    ]
    for arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            run(print, **arguments)


def _place(factor: int, add: int = 0) -> tuple[int, str]:
    place = [os.environ[f"HOROVOD_{name}"] for name in ("RANK", "SIZE", "HOSTNAME")]
    return int(place[0]) * factor + add, "/".join(place[1:])


@pytest.mark.job
def test_a_function_runs_on_ranks() -> None:
    with pytest.warns(DeprecationWarning, match="`np`"):
        assert run(_place, (10,), {"add": 1}, np=2) == [(1, "2/localhost"), (11, "2/localhost")]


@pytest.mark.job
def test_horovodrun_starts_ranks() -> None:
    program = (
        "echo rank $HOROVOD_RANK of $HOROVOD_SIZE, local $HOROVOD_LOCAL_RANK, $HOROVOD_HOSTNAME"
    )
    command = [sys.executable, "-m", "ringar.horovod.runner.launch", "-np", "2"]
    job = subprocess.run(
        [*command, "-H", "127.0.0.1:1,localhost:1", "--cycle-time-ms", "1", "sh", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert sorted(line[4:] for line in job.stdout.splitlines()) == [
        "rank 0 of 2, local 0, 127.0.0.1",
        "rank 1 of 2, local 1, localhost",
    ]
    assert "horovodrun: --cycle-time-ms has no effect: ringar has no coordinator" in job.stderr
