"""An accused publisher, made anew for each test."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from worlds.comparing import compared_apart, compared_here

__all__ = ["compared_apart", "compared_here"]


def load_world(name: str) -> Any:
    path = Path(__file__).parents[3] / "worlds" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def accused_world() -> Any:
    return load_world("accused_world")


@pytest.fixture
def accused(accused_world: Any, tmp_path: Path) -> Any:
    return accused_world.Accused(load_world("transform_world"), tmp_path / "world")
