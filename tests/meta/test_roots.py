"""The import roots are ours: their names are generic, and something installed beside us could stand in front."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]


@pytest.mark.parametrize("root", ["config", "chain", "engines", "p2p", "odfd", "odfd_client"])
def test_root_is_ours(root: str) -> None:
    spec = importlib.util.find_spec(root)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).is_relative_to(TREE)
