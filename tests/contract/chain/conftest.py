from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from worlds import store_worlds


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[store_worlds.World]:
    yield from getattr(store_worlds, request.param)(tmp_path)
