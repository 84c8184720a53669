"""Worlds in memory with the small engine."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest


def load_worlds() -> Any:
    path = Path(__file__).parents[3] / "worlds" / "transform_world.py"
    spec = importlib.util.spec_from_file_location("transform_world", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def world(tmp_path: Path) -> Any:
    return load_worlds().World(tmp_path)


@pytest.fixture(scope="session")
def make_world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    worlds = load_worlds()
    return lambda: worlds.World(tmp_path_factory.mktemp("world"))
