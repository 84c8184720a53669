"""For all tests: no example has a deadline, what takes long starts first, collecting them collects no garbage."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

settings.register_profile("odfd", deadline=None)
"""How long an example takes is the machine's affair, and no test asserts a time."""
settings.load_profile("odfd")
settings.register_profile("quick", settings.get_profile("odfd"), max_examples=20)
"""``make quick``; a test that says how many examples it needs keeps them."""

gc.disable()

TESTS: Final = Path(__file__).parent
LONGEST: Final = tuple((TESTS / "longest.txt").read_text().split())
"""Files that take longest, those first. One that starts last leaves the other processes idle."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For several processes, which take files in this order (``--dist loadfile --no-loadscope-reorder``)."""
    if hasattr(config, "workerinput"):
        rank = {TESTS / name: number for number, name in enumerate(LONGEST)}
        items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Modules and tests stay until the end: a third of collecting them went into looking whether they are garbage, and
    every full collection of a test would look again. What an import left behind unclosed is told by the first test."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """Before pytest collects for the last time, and whatever was lost in a cycle is told."""
    gc.unfreeze()
