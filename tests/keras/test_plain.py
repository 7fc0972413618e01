"""A process that uses ringar trains plain Keras models as one without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin import fast_if, run_job

pytestmark = pytest.mark.job


@pytest.mark.parametrize(("np", "models"), [(1, "some"), fast_if(False, 2, "every")])
def test_plain_models_have_the_bits_of_a_process_without_ringar(np: int, models: str) -> None:
    job = run_job(np, Path(__file__).with_name("plain.py"), args=(models,), deadline=120).check()
    assert job.stdout.count("[]") == np, job
