"""Simulations of several instances run in one thread: only one of them is ever at work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from worlds.one_thread import one_thread


@pytest.fixture(autouse=True, scope="module")
def in_one_thread() -> Iterator[None]:
    with one_thread():
        yield
