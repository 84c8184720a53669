"""Limits a request's use of the disk, and explains Spark's errors when a limit is reached.

Spark spills to disk what does not fit into memory; an exploding join would fill the disk of the whole node. So the
folder is measured while requests are in work, and all of them are stopped when it is too full. Lives as long as the
handler; its thread runs only while there is something to watch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException

from engines.errors import DISK, MEMORY, LimitExceeded

RESERVE: Final = 256 << 20
"""Bytes of the file system that stay free for other programs."""
_POLL_SECONDS: Final = 0.25
_NO_MEMORY: Final = ("UNABLE_TO_ACQUIRE_MEMORY", "OutOfMemoryError", "SparkOutOfMemoryError", "_LEGACY_ERROR_TEMP_2250")
_NO_DISK: Final = ("No space left on device", "Disk quota exceeded", "File too large")


def limit_met(fault: BaseException) -> LimitExceeded | None:
    """Returns the limit that caused Spark's error, if one did."""
    text = str(fault) if isinstance(fault, PySparkException) else ""
    if any(sign in text for sign in _NO_DISK):
        return LimitExceeded("the query filled the disk of the engine", rule=DISK, hint=_LESS)
    if any(sign in text for sign in _NO_MEMORY):
        return LimitExceeded("the query needs more memory than the engine has", rule=MEMORY, hint=_LESS)
    return None


_LESS: Final = "join on more columns or within narrower times, filter earlier, or give the engine more"


@dataclass(slots=True, eq=False)
class Watched:
    stop: Callable[[], None]
    over: LimitExceeded | None = None


class DiskWatch:
    """Stops requests while ``folder`` holds more than ``most`` bytes, or its file system is nearly full."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder = folder
        self._most = most
        self._watched: set[Watched] = set()
        self._changed = threading.Condition()
        self._is_watching = False

    @contextlib.contextmanager
    def over(self, stop: Callable[[], None]) -> Iterator[Watched]:
        """Watches the disk during a request; if it is too full, calls ``stop`` once, from another thread."""
        watched = Watched(stop)
        with self._changed:
            self._watched.add(watched)
            if not self._is_watching:
                self._is_watching = True
                threading.Thread(target=self._watch, name="engine-disk", daemon=True).start()
        try:
            yield watched
        finally:
            with self._changed:
                self._watched.discard(watched)
                self._changed.notify_all()

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: not self._watched, _POLL_SECONDS):
                    self._is_watching = False
                    return
                watched = [each for each in self._watched if each.over is None]
            why = self._why() if watched else None
            for each in watched if why is not None else ():
                each.over = why
                each.stop()

    def _why(self) -> LimitExceeded | None:
        used = _bytes_in(self._folder)
        if used > self._most:
            return LimitExceeded(
                f"the query put {used >> 20} MiB on disk, and {self._most >> 20} MiB are allowed", rule=DISK, hint=_LESS
            )
        if used and shutil.disk_usage(self._folder).free < RESERVE:
            return LimitExceeded("the query has all but filled the disk of the engine", rule=DISK, hint=_LESS)
        return None


def _bytes_in(folder: Path) -> int:
    """Counts the bytes of all files below; files that vanish meanwhile count as zero."""
    total = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as found:
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                total += _bytes_in(Path(entry.path))
            else:
                with contextlib.suppress(FileNotFoundError):
                    total += entry.stat(follow_symlinks=False).st_size
    return total
