from __future__ import annotations

from tests.keras.conftest import mixed_float16 as mixed_float16
from tests.keras.conftest import policy as policy
from tests.parallel.conftest import open_grid as open_grid
