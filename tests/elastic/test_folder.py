"""The folder of `--elastic-dir`: which commits it keeps, and how they are read."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest

import ringar
from ringar.elastic import folder
from ringar.errors import MismatchError, RingarError
from ringar.job import membership

pytestmark = pytest.mark.usefixtures("initialized")

LAYOUT = {"object steps": "an object"}


def names(where: Path) -> list[str]:
    return sorted(path.name for path in where.iterdir())


def test_the_last_two_commits_are_kept(tmp_path: Path) -> None:
    assert folder.read(tmp_path, LAYOUT) is None
    for number in (9, 10, 11):
        folder.write(tmp_path, number, LAYOUT, {"steps": number})
    assert names(tmp_path) == ["commit-10.pickle", "commit-11.pickle"]
    assert folder.read(tmp_path, LAYOUT) == (11, {"steps": 11})
    folder.write(tmp_path, 5, LAYOUT, {"steps": 5})  # of a training that began anew
    assert folder.read(tmp_path, LAYOUT) == (5, {"steps": 5})
    folder.remove(tmp_path)
    assert names(tmp_path) == []


def test_a_damaged_commit_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in (1, 2):
        folder.write(tmp_path, number, LAYOUT, {"steps": number})
    newest = folder.path_of(tmp_path, 2)
    text = newest.read_bytes()
    damage = text[:-5] + bytes([text[-5] ^ 1]) + text[-4:]
    for damaged, why in (
        (text[:-7], "cut off after"),
        (damage, "changed after it was written"),
        (b"", "not the beginning of a commit"),
        (text[:20], "not the beginning of a commit"),
    ):
        newest.write_bytes(damaged)
        caplog.clear()
        assert folder.read(tmp_path, LAYOUT) == (1, {"steps": 1})
        assert f"commit 2: {why}" in caplog.text
        assert "the state is that of commit 1" in caplog.text
    folder.path_of(tmp_path, 1).write_bytes(b"")
    with pytest.raises(RingarError) as error:
        folder.read(tmp_path, LAYOUT)
    for part in (str(tmp_path), "commit 2: not", "commit 1: not", "remove the files to begin anew"):
        assert part in str(error.value)


class Gone:
    """A class that another program lacks."""


def test_objects_of_another_program_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write(tmp_path, 3, LAYOUT, {"steps": Gone()})
    monkeypatch.delattr(f"{__name__}.Gone")
    with pytest.raises(RingarError, match=r"received commit 3, which raises AttributeError"):
        folder.read(tmp_path, LAYOUT)


def model_of(units: int, optimizer: str) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units)])
    model.compile(optimizer, "mse")
    return model


def test_a_commit_of_another_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another shape, another optimizer, other objects; the same model goes on."""
    monkeypatch.setenv(membership.FOLDER_VARIABLE, str(tmp_path))
    first = ringar.elastic.KerasState(model_of(4, "adam"), epoch=7)
    first.sync()
    first.keep()
    for other, reason in (
        (
            ringar.elastic.KerasState(model_of(5, "adam"), epoch=0),
            "weight 0: expected float32[3, 5]",
        ),
        (ringar.elastic.KerasState(model_of(4, "sgd"), epoch=0), "slot 0 2: expected nothing, rec"),
        (ringar.elastic.KerasState(model_of(4, "adam"), step=0), "object step: expected an object"),
    ):
        before = other.model.get_weights()
        with pytest.raises(MismatchError) as error:
            other.sync()
        for part in (str(tmp_path), "commit 2", reason, "Start the program that has written it"):
            assert part in str(error.value)
        assert all((a == b).all() for a, b in zip(before, other.model.get_weights(), strict=True))
    same = ringar.elastic.KerasState(model_of(4, "adam"), epoch=0)
    same.sync()
    assert same.epoch == 7
    same.end()
    assert names(tmp_path) == []
