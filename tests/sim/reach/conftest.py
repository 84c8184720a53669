"""The simulated worlds, loaded as a package of their own."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from worlds.packages import load


@pytest.fixture(scope="session")
def routed() -> ModuleType:
    return load(Path(__file__).parent / "routed", "events", "outlook", "carriage", "punches")
