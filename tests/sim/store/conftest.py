"""The folders that the lives of a store import from."""

from __future__ import annotations

from pathlib import Path

import pytest

from worlds import store_life


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store_life.make_sources(tmp_path_factory.mktemp("sources"))
