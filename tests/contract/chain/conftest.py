from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def worlds() -> ModuleType:
    spec = importlib.util.spec_from_file_location("store_worlds", Path(__file__).parent / "store_worlds.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["store_worlds"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, worlds: ModuleType, tmp_path: Path) -> Iterator[object]:
    yield from getattr(worlds, request.param)(tmp_path)
