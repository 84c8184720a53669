"""Foreign nodes: see ``interop/foreign.py``, which is loaded by its path because test folders are no packages."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from worlds.daemons import forking, golden, make_daemon

__all__ = ["forking", "golden", "make_daemon"]


@pytest.fixture(scope="session")
def foreign() -> ModuleType:
    spec = importlib.util.spec_from_file_location("interop_foreign", Path(__file__).parent / "interop" / "foreign.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
