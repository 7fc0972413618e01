from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.outcomes import Outcomes, run_scenarios


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Run the module's script on three ranks, or on as many as the module has in `RANKS`."""
    name = request.path.stem.removeprefix("test_")
    script = Path(__file__).parent / "scripts" / f"{name}.py"
    ranks: int | None = getattr(request.module, "RANKS", 3)
    return run_scenarios(ranks, script, tmp_path_factory.mktemp(name))
