"""Rules of the source tree."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from worlds.source_tree import parsed


@pytest.fixture(scope="package", autouse=True)
def forget_trees() -> Iterator[None]:
    """Two hundred megabytes, which no other test needs."""
    yield
    parsed.cache_clear()
