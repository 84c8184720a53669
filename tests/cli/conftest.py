"""What a document finds around it: its own folder, the golden files, no daemon, a bin folder with the programs."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def documents() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cli_documents", HERE / "documents.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cli_documents"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def play(documents: ModuleType, tmp_path: Path) -> Callable[[Path], int]:
    def run(document: Path, **more: Any) -> int:
        home = tmp_path / "home"
        home.mkdir()
        (tmp_path / "golden").symlink_to(HERE.parent / "golden")
        environ = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "COLUMNS": "100",
            "PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", ""),
            **more,
        }
        return int(documents.run(document, tmp_path, environ))

    return run
