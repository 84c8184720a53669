"""Rules of the source tree."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from worlds.source_tree import forget


@pytest.fixture(scope="package", autouse=True)
def forget_trees() -> Iterator[None]:
    yield
    forget()
