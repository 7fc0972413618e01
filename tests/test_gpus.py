"""Which GPU `ringar.init()` shows TensorFlow, on a machine that only seems to have some."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from ringar.job import gpus, nvidia, tensorflow
from tests.plugin import run_job

pytestmark = pytest.mark.ranks(1)

LATE = "Visible devices cannot be modified after being initialized"


@dataclass
class Device:
    name: str


@dataclass
class Config:
    """tf.config, with GPUs."""

    gpus: list[Device]
    in_use: bool = False
    shown: list[Device] = field(default_factory=list)

    def get_visible_devices(self, kind: str) -> list[Device]:
        assert kind == "GPU"
        return self.gpus

    def set_visible_devices(self, device: Device, kind: str) -> None:
        assert kind == "GPU"
        if self.in_use:
            raise RuntimeError(LATE)
        self.shown.append(device)


def four() -> Config:
    return Config([Device(f"/physical_device:GPU:{number}") for number in range(4)])


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """TensorFlow's, on a machine that has a driver and four GPUs."""
    monkeypatch.setattr(nvidia, "_DRIVER", tmp_path)
    for number in range(4):
        (tmp_path / f"gpus/{number}").mkdir(parents=True)
    config = four()
    monkeypatch.setattr(tensorflow, "is_loaded", lambda: True)
    monkeypatch.setattr(tensorflow, "load", lambda: SimpleNamespace(config=config))
    return config


@pytest.mark.parametrize(("local_rank", "shown"), [(0, 0), (3, 3), (5, 1)])
def test_one_gpu_by_local_rank(
    config: Config, local_rank: int, shown: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        gpus.configure(8 + local_rank, local_rank, 6, {})
    assert config.shown == [config.gpus[shown]]
    (message,) = caplog.messages
    assert message.startswith(f"uses GPU {shown}, one of 4; RINGAR_GPUS=all ")


def test_those_that_the_program_has_chosen(config: Config) -> None:
    config.gpus = config.gpus[2:]
    gpus.configure(1, 1, 2, {})
    assert [device.name[-1] for device in config.shown] == ["3"]


@pytest.mark.parametrize(
    ("local_size", "environ"),
    [
        (1, {}),  # a rank alone on its host may use them all
        (2, {"RINGAR_GPU": "1"}),
        (2, {"RINGAR_GPUS": "all"}),
        (2, {"CUDA_VISIBLE_DEVICES": "3"}),
        (2, {"CUDA_VISIBLE_DEVICES": ""}),
    ],
)
def test_tensorflow_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, config: Config, local_size: int, environ: dict[str, str]
) -> None:
    monkeypatch.setattr(tensorflow, "load", None)
    gpus.configure(0, 0, local_size, environ)


def test_tensorflow_is_not_asked_without_a_driver(
    monkeypatch: pytest.MonkeyPatch, config: Config, tmp_path: Path
) -> None:
    monkeypatch.setattr(tensorflow, "load", None)
    monkeypatch.setattr(nvidia, "_DRIVER", tmp_path / "none")
    monkeypatch.setattr(nvidia, "_DEVICES", tmp_path / "none")
    gpus.configure(0, 0, 2, {"CUDA_VISIBLE_DEVICES": "0,1"})


@pytest.mark.parametrize("count", [0, 1])
def test_what_tensorflow_itself_does_not_see(
    config: Config, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    config.gpus = config.gpus[:count]  # tensorflow-cpu, or the program has chosen one
    gpus.configure(1, 1, 2, {})
    assert not config.shown
    assert capsys.readouterr().err == ""


PARTS = {"CUDA_VISIBLE_DEVICES": "MIG-1a,MIG-2b,MIG-3c"}


def test_one_part_of_a_gpu_of_which_cuda_shows_only_the_first(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    config.gpus = config.gpus[:1]
    environ = dict(PARTS)
    with caplog.at_level("INFO"):
        gpus.configure(5, 1, 3, environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": "MIG-2b"}
    (message,) = caplog.messages
    assert message.startswith("uses GPU MIG-2b, one of 3; ")


def test_a_part_cannot_be_chosen_any_more(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fd").mkdir()
    (tmp_path / "fd/4").symlink_to("/dev/nvidiactl")
    monkeypatch.setattr(nvidia, "_OPEN_FILES", tmp_path / "fd")
    environ = dict(PARTS)
    with pytest.warns(UserWarning, match=r"rank 5 \| a GPU was in use .* first of 3 parts"):
        gpus.configure(5, 1, 3, environ)
    assert environ == PARTS


def test_tensorflow_was_in_use_before(config: Config) -> None:
    config.in_use = True
    with pytest.warns(UserWarning, match=r"rank 3 \| TensorFlow was in use .* all 4 GPUs.*first"):
        gpus.configure(3, 1, 2, {})


def test_refusal(config: Config) -> None:
    with pytest.raises(ValueError, match="RINGAR_GPUS must be one of each, all. Received: 'one'"):
        gpus.configure(0, 0, 1, {"RINGAR_GPUS": "one"})


def test_without_gpus_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gpus.configure(0, 0, 2, {"CUDA_VISIBLE_DEVICES": ""})
    assert capsys.readouterr().err == ""


@pytest.mark.job
def test_init_refuses_a_wrong_mode() -> None:
    program = "import ringar\nringar.init()\n"
    result = run_job(None, program, env={"RINGAR_GPUS": "some"}).check(1)
    assert "ValueError: RINGAR_GPUS must be one of each, all. Received: 'some'" in result.stderr


@pytest.mark.job
def test_tensorflow_refuses_as_the_stand_in_does() -> None:
    """Devices of the CPU stand for GPUs: TensorFlow treats them alike."""
    program = """
import tensorflow as tf
tf.constant(1) + 1
try:
    tf.config.set_visible_devices([], "CPU")
except RuntimeError as error:
    print(error)
"""
    assert run_job(None, program).check().stdout.strip() == LATE
