"""Nodes in one process."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def worlds() -> Any:
    path = Path(__file__).parents[3] / "worlds" / "node_world.py"
    spec = importlib.util.spec_from_file_location("node_world", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["node_world"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def world(worlds: Any, tmp_path: Path) -> Iterator[Any]:
    made = worlds.World(tmp_path)
    yield made
    made.close()
