from __future__ import annotations

from tests.asynchronous.conftest import mixed_float16 as mixed_float16
from tests.asynchronous.conftest import policy as policy
from tests.parallel.conftest import open_grid as open_grid
