"""The simulated network, loaded as a package of its own."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

NAME = "swarm"


def load() -> ModuleType:
    """Once a process."""
    if NAME not in sys.modules:
        folder = Path(__file__).parent / NAME
        spec = importlib.util.spec_from_file_location(
            NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules[NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[NAME])
        for part in ("world", "transfers"):
            importlib.import_module(f"{NAME}.{part}")
    return sys.modules[NAME]


@pytest.fixture(scope="session")
def swarm() -> ModuleType:
    return load()
