"""For all tests: no example has a deadline, what takes long starts first, files that are soon gone lie in memory."""

from __future__ import annotations

import os
import re
import shutil
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
MEMORY: Final = Path("/dev/shm")
ROOM: Final = 8 << 30
"""Bytes that are free of disk and of memory: several times what three processes had there at once, and their JVMs."""


def pytest_configure(config: pytest.Config) -> None:
    """Stores are made by the hundred, and each waits for the disk as if somebody's data were in it."""
    if not hasattr(config, "workerinput") and _holds_files(MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For several processes, which take files in this order (``--dist loadfile --no-loadscope-reorder``)."""
    if hasattr(config, "workerinput"):
        rank = {TESTS / name: number for number, name in enumerate(LONGEST)}
        items.sort(key=lambda item: rank.get(item.path, len(rank)))


def _holds_files(folder: Path) -> bool:
    """Whether there is room, memory for it, and programs may lie there too."""
    if not folder.is_dir() or os.statvfs(folder).f_flag & os.ST_NOEXEC or not os.access(folder, os.W_OK):
        return False
    available = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    return available is not None and min(shutil.disk_usage(folder).free, int(available[1]) << 10) >= ROOM
