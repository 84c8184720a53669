"""Packages that lie beside the tests that use them: pytest imports tests by their files, and finds no package there."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load(folder: Path, *parts: str) -> ModuleType:
    """The package in ``folder``, under the folder's name, with these modules of it; once a process."""
    name = folder.name
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
        for part in parts:
            importlib.import_module(f"{name}.{part}")
    return sys.modules[name]
