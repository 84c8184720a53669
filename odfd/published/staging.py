"""Counts blocks that are staged as files, and enforces their limit. Safe to use from any thread.

A folder of blocks is counted until it is removed. One that was not used for an hour is a leftover, as are those of an
earlier run: they are removed when their room is needed. Blocking.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from odfd.runtime.filesystem import CHECK_ROOM, check_room

PER_FILE: Final = 4096
"""Bytes of overhead of a file: its entry, and the rounding up of its last page."""
IDLE_SECONDS: Final = 3600.0
"""Seconds since the last use of a folder after which no continuation is expected."""
_LONG_AGO: Final = float("-inf")


class StagingQuota:
    """The limit over all staging folders of a node.

    ``reserve``: bytes left free on the disk. ``quota`` raises Environment for bytes that mirrors may not use.
    """

    def __init__(
        self, reserve: Callable[[], int], quota: Callable[[int], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reserve, self._quota = reserve, quota
        self._clock = clock
        self._lock = threading.Lock()
        self._places: list[Path] = []
        self._counted: dict[Path, int] = {}
        self._used: dict[Path, float] = {}
        self._unchecked = CHECK_ROOM
        """Bytes reserved since the free disk space was last checked."""

    def add(self, staging: Path) -> None:
        """Adds a directory of such folders. Leftovers of an earlier run are counted on first use."""
        self._places.append(staging)

    def take(self, folder: Path, size: int, files: int = 1, *, is_mirrored: bool = True) -> None:
        """Reserves room before ``files`` files of ``size`` bytes in total are written to ``folder``.

        Raises Environment. ``is_mirrored``: they count towards the quota of mirrors.
        """
        needed = size + PER_FILE * files
        self.use(folder)
        if is_mirrored:
            self._quota(needed)
        self._unchecked += needed
        if self._unchecked >= CHECK_ROOM:
            check_room(_existing(folder), self._reserve(), CHECK_ROOM + needed)
            self._unchecked = 0
        with self._lock:
            self._find()
            self._counted[folder] = self._counted.get(folder, 0) + (needed if is_mirrored else 0)

    def use(self, folder: Path) -> None:
        """Protects a folder from removal for ``IDLE_SECONDS``."""
        with self._lock:
            self._used[folder] = self._clock()

    def remove(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        with self._lock:
            self._counted.pop(folder, None)
            self._used.pop(folder, None)

    def total(self) -> int:
        """Returns the bytes of all folders."""
        with self._lock:
            self._find()
            return sum(self._counted.values())

    def remove_leftovers(self) -> None:
        now = self._clock()
        with self._lock:
            self._find()
            idle = [each for each in self._counted if now - self._used.get(each, _LONG_AGO) > IDLE_SECONDS]
        for folder in idle:
            self.remove(folder)

    def _find(self) -> None:
        places, self._places = self._places, []
        for folder in (folder for place in places if place.is_dir() for folder in place.iterdir()):
            sizes = list(_sizes(folder))
            self._counted.setdefault(folder, sum(sizes) + PER_FILE * len(sizes))


def _sizes(folder: Path) -> Iterator[int]:
    return (file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _existing(folder: Path) -> Path:
    return folder if folder.exists() else _existing(folder.parent)
