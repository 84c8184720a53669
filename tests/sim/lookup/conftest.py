"""The simulated lookup, loaded as a package of its own."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from worlds.packages import load


@pytest.fixture(scope="session")
def kad() -> ModuleType:
    return load(Path(__file__).parent / "kad", "trial", "table", "bounds")
