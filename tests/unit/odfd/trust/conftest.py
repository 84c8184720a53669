"""An accused publisher, made anew for each test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import worlds.accused_world
from worlds.comparing import compared_apart, compared_here

__all__ = ["compared_apart", "compared_here"]


@pytest.fixture
def accused_world() -> Any:
    return worlds.accused_world


@pytest.fixture
def accused(accused_world: Any, tmp_path: Path) -> Any:
    return accused_world.Accused(tmp_path / "world")
