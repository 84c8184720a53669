"""Worlds in memory with the small engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from worlds import transform_world


@pytest.fixture
def world(tmp_path: Path) -> Any:
    return transform_world.World(tmp_path)


@pytest.fixture(scope="session")
def make_world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return lambda: transform_world.World(tmp_path_factory.mktemp("world"))
