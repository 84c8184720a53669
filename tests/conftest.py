"""For all tests: no example has a deadline, and what takes long starts first."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

settings.register_profile("odfd", deadline=None)
"""How long an example takes is the machine's affair, and no test asserts a time."""
settings.load_profile("odfd")

TESTS: Final = Path(__file__).parent
LONGEST: Final = tuple((TESTS / "longest.txt").read_text().split())
"""Files that take longest, those first. One that starts last leaves the other processes idle."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For several processes, which take files in this order (``--dist loadfile --no-loadscope-reorder``)."""
    if hasattr(config, "workerinput"):
        rank = {TESTS / name: number for number, name in enumerate(LONGEST)}
        items.sort(key=lambda item: rank.get(item.path, len(rank)))
