"""What ringar replaces in Keras and TensorFlow is there, and is refused by name where it is not."""

from __future__ import annotations

import importlib
import logging
import runpy

import keras
import pytest

import ringar.keras
from ringar import hooks
from ringar.errors import UnsupportedError


def test_the_installed_versions_have_all_that_is_replaced() -> None:
    assert hooks.gaps() == {}
    for hook in (hook for feature in hooks.TABLE.values() for hook in feature):
        module, _, function = hook.wrapper.partition(":")
        assert getattr(importlib.import_module(module), function).__doc__, hook


def test_an_attribute_is_replaced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def wrapper(original: object) -> object:
        calls.append("wrapped")
        return original

    monkeypatch.setattr(hooks, "wrapper_of_the_test", wrapper, raising=False)
    hook = hooks.Hook("keras.Model", "summary", "ringar.hooks:wrapper_of_the_test")
    monkeypatch.setitem(hooks.TABLE, "summaries", (hook,))
    monkeypatch.setattr(keras.Model, "summary", keras.Model.summary)
    hooks.install("summaries")
    hooks.install("summaries")
    assert calls == ["wrapped"]


@pytest.mark.parametrize("owner", ["keras.Model", "keras.src.nowhere", "tensorflow.Nothing"])
def test_a_feature_that_cannot_work_is_refused_by_name(
    owner: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hook = hooks.Hook(owner, "vanished", "ringar.keras.fitting:handing_over")
    monkeypatch.setitem(hooks.TABLE, "time travel", (*hooks.TABLE["distributed training"], hook))
    expected = (
        rf"Keras {keras.__version__} and TensorFlow \S+ lack {owner}\.vanished\. "
        "Install versions that ringar serves"
    )
    with caplog.at_level(logging.WARNING, logger="ringar"):
        hooks.warn_of_gaps()
    assert len(caplog.records) == 1
    assert caplog.text.count("time travel will be refused: ") == 1
    with pytest.raises(UnsupportedError, match=f"time travel cannot work here: {expected}"):
        hooks.install("time travel")


def test_an_old_keras_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras, "__version__", "3.9.2")
    expected = r"needs Keras 3\.12 or later, found 3\.9\.2\. .* pip install 'keras>=3\.12'"
    with pytest.raises(ImportError, match=expected):
        runpy.run_path(ringar.keras.__file__)
