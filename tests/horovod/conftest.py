from __future__ import annotations

import pytest

from ringar.keras import share


@pytest.fixture(autouse=True)
def no_loss_before() -> None:
    """Forget the rows of the last loss of other tests: these make gradients without a loss."""
    share._batch_in_eager_code.clear()
