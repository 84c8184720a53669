"""Nodes in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from worlds import node_world
from worlds.comparing import compared_apart, compared_here

__all__ = ["compared_apart", "compared_here"]


@pytest.fixture(scope="session")
def worlds() -> Any:
    return node_world


@pytest.fixture
def world(worlds: Any, tmp_path: Path) -> Iterator[Any]:
    made = worlds.World(tmp_path)
    yield made
    made.close()
