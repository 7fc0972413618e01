"""`ringar.run` calls functions on ranks, from scripts and notebooks, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

import ringar
from ringar.launchers.function.rendezvous import Client, Outcome, Server
from ringar.launchers.plan.request import Request
from tests.launchers.helpers import MARK, QUICK, clean_environment, processes, wait_until
from tests.plugin.jobs import PYTHONPATH, left_in_shared_memory

pytestmark = pytest.mark.job


@pytest.fixture(autouse=True)
def outside_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)


def test_results_come_in_the_order_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    def work(base: int, *, factor: int) -> dict[str, Any]:
        rank = int(os.environ["RINGAR_RANK"])
        print("hello from", rank)
        print("mind", rank, file=sys.stderr)
        return {"rank": rank, "value": base + factor * rank, "set": os.environ["SOME"]}

    results = ringar.run(work, (10,), {"factor": 2}, np=2, env={"SOME": "a b=ä"})
    assert results == [
        {"rank": 0, "value": 10, "set": "a b=ä"},
        {"rank": 1, "value": 12, "set": "a b=ä"},
    ]
    output = capsys.readouterr()
    assert sorted(output.out.splitlines()) == ["[0] hello from 0", "[1] hello from 1"]
    assert sorted(output.err.splitlines()) == ["[0] mind 0", "[1] mind 1"]


class OwnError(Exception):
    """An exception that pickles, and cannot be unpickled: it takes two arguments."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


def test_the_error_of_the_rank_that_failed_first_is_raised() -> None:
    def lookup(rank: int) -> int:
        return {0: 1}[rank]

    def fail() -> None:
        rank = int(os.environ["RINGAR_RANK"])
        if rank == 1:
            lookup(rank)
        threading.Event().wait(60)

    with pytest.raises(KeyError) as raised:
        ringar.run(fail, np=2)
    assert raised.value.args == (1,)
    cause = raised.value.__cause__
    assert isinstance(cause, ringar.errors.RankError)
    assert str(cause).startswith("rank 1 of 2 failed:\nTraceback (most recent call last):\n")
    assert "in lookup\n" in str(cause)
    assert "worker.py" not in str(cause)


def leave(how: str) -> Any:
    """End in one of the ways that give no result; on one rank."""
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "own error":
        raise OwnError(3, "broken")
    if how == "sys.exit":
        sys.exit(0)
    if how == "os._exit":
        os._exit(0)
    return threading.Lock()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("killed", r"^rank 0 of 1 was killed by signal 9 \(SIGKILL\)"),
        ("own error", r"(?s)^rank 0 of 1 failed:\nTraceback .*OwnError: 3: broken"),
        ("sys.exit", r"(?s)^rank 0 of 1 failed:\nTraceback .*SystemExit: 0"),
        ("os._exit", "^expected the results of 1 ranks, but rank 0 ended without one"),
    ],
)
def test_ranks_without_a_result(how: str, message: str) -> None:
    with pytest.raises(ringar.errors.RankError, match=message):
        ringar.run(leave, (how,), np=1)


def test_a_result_that_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match=r"rank 0: expected a result that can be .*_thread\.lock"):
        ringar.run(leave, ("lock",), np=1)


def test_ranks_that_take_too_long_are_ended() -> None:
    def sleep() -> None:
        threading.Event().wait(60)

    message = "within 1 s on every rank, still waiting for rank 0"
    with pytest.raises(ringar.errors.DeadlineError, match=message):
        ringar.run(sleep, np=1, timeout=1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ({"function": 3}, TypeError, "expected a function, received 3"),
        ({"args": (threading.Lock(),)}, TypeError, "arguments that can be pickled: .*lock"),
        ({"np": 0}, ValueError, "expected the number of ranks to start, from 1"),
        ({"hosts": "h1:x"}, ValueError, r"-H: expected host:N with .* received 'x'"),
        ({"options": ["--prefx"]}, ValueError, "unknown option --prefx; did you mean --prefix"),
    ],
)
def test_bad_calls_start_nothing(call: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        ringar.run(**{"function": print, "np": 1, **call})


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ({}, 2),
        ({"min_np": 3}, 3),
        ({"min_np": 1, "max_np": 1}, 1),
        ({"hosts": "localhost:5"}, None),
        ({"options": ["--hostfile", "hosts"]}, None),
        ({"options": ["--host-discovery-script", "./hosts.sh"], "min_np": 3}, None),
    ],
)
def test_the_number_of_ranks_where_none_is_given(
    call: dict[str, Any], number: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Hosts that are named have slots. Without: two, or as many as an elastic job needs."""
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("localhost slots=5\n")
    requests: list[Request] = []

    def stop(request: Request) -> bool:
        requests.append(request)
        raise InterruptedError

    monkeypatch.setattr("ringar.launchers.function.run._is_elastic", stop)
    monkeypatch.setattr("ringar.job.nvidia.visible_gpus", lambda environ: [])
    monkeypatch.setattr("ringar.launchers.plan.scheduler_hosts.find", lambda environ: None)
    with pytest.raises(InterruptedError):
        ringar.run(print, **call)
    assert [request.num_proc for request in requests] == [number]


@pytest.mark.parametrize("variable", ["RINGAR_JOB", "RINGAR_RANK"])
def test_a_rank_starts_no_job(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(RuntimeError, match="but this one is a rank"):
        ringar.run(print, np=1)


def test_strangers_get_no_function(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(["127.0.0.2"], local=False, last=b"function") as server:
        key, rest = server.variable.split(" ", 1)
        monkeypatch.setenv("RINGAR_RUN", f"{'00' * 32} {rest}")
        with pytest.raises(ConnectionError, match="rejected"):
            Client(0)
        monkeypatch.setenv("RINGAR_RUN", f"{key} {rest}")
        client = Client(3)
        messages = client.messages()
        assert next(messages) == b"function"
        client.send(Outcome("", b"result"))
        assert server.outcomes == {3: Outcome("", b"result")}
        assert not list(messages)


SCRIPT = """
import os, signal, sys, time
import helper
import ringar

class Box:
    def __init__(self, value):
        self.value = value

def wait():
    print("ready", flush=True)
    time.sleep(60)

if sys.argv[1] == "boxes":
    boxes = ringar.run(lambda: Box(helper.rank()), np=2)
    print([box.value for box in boxes], {type(box) is Box for box in boxes})
else:
    try:
        ringar.run(wait, np=2)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    helper = "import os\n\ndef rank():\n    return os.environ['RINGAR_RANK']\n"
    (tmp_path / "helper.py").write_text(helper)
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def start(script: Path, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    mark = uuid.uuid4().hex
    environment = {**clean_environment(), **QUICK, "PYTHONPATH": PYTHONPATH, MARK: mark}
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd="/",
    )
    return process, mark


def test_classes_of_a_script_and_modules_beside_it(script: Path) -> None:
    process, _ = start(script, "boxes")
    assert process.communicate(timeout=60)[0] == "['0', '1'] {True}\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ranks_end_with_their_caller(number: int, script: Path) -> None:
    process, mark = start(script, "wait")
    assert process.stdout is not None
    lines = {process.stdout.readline(), process.stdout.readline()}
    assert lines == {"[0] ready\n", "[1] ready\n"}
    process.send_signal(number)
    rest = process.communicate(timeout=30)[0]
    assert process.returncode == (0 if number == signal.SIGINT else -number)
    if number == signal.SIGINT:
        assert rest == "ringarrun: stopped all ranks on SIGINT\ninterrupted\n"
    wait_until(lambda: not processes(mark), "the end of all processes")
    assert not left_in_shared_memory()


CELLS = [
    """\
    import ringar

    seed = 7


    def train(epochs):
        import keras
        import numpy as np

        ringar.init()
        keras.utils.set_random_seed(seed)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(ringar.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
        x = np.random.default_rng(ringar.rank()).normal(size=(16, 4))
        history = model.fit(
            x, x.sum(1), batch_size=8, epochs=epochs, verbose=0,
            callbacks=[ringar.callbacks.Distributed()],
        )
        print("trained", ringar.rank(), "of", ringar.size())
        return history.history["loss"], model.get_weights()[0].tolist()
    """,
    """\
    (losses, weights), (other_losses, other_weights) = ringar.run(train, (2,), np=2)
    assert losses == other_losses and weights == other_weights
    assert losses[1] < losses[0]
    len(losses)
    """,
    """\
    def fail():
        raise LookupError("nothing there")

    ringar.run(fail, np=2)
    """,
]


@pytest.mark.deadline(180)
def test_a_notebook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    for name in [name for name in os.environ if name.startswith("RINGAR_RANK")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    cells = [nbformat.v4.new_code_cell(textwrap.dedent(cell)) for cell in CELLS]
    cells[2].metadata["tags"] = ["raises-exception"]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    trained, failed = (notebook.cells[index].outputs for index in (1, 2))
    printed = "".join(output.text for output in trained if output.get("name") == "stdout")
    assert sorted(printed.splitlines()) == ["[0] trained 0 of 2", "[1] trained 1 of 2"]
    assert trained[-1].data["text/plain"] == "2"
    (error,) = (output for output in failed if output.output_type == "error")
    assert (error.ename, error.evalue) == ("LookupError", "nothing there")
    assert "of 2 failed:" in "".join(error.traceback)
