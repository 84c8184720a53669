"""The program of a store's life, and the folders it imports from."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="session")
def life() -> ModuleType:
    path = Path(__file__).parents[2] / "worlds" / "store_life.py"
    spec = importlib.util.spec_from_file_location("store_life", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["store_life"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def sources(life: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return life.make_sources(tmp_path_factory.mktemp("sources"))
