"""Caches files of objects that were read from a bucket, up to a number of bytes, least recently used first out.

A file is deleted when room is needed, unless a reader holds the object or asked for it within the last minute; a reader
that opened its file in time reads on after the deletion. If nothing may be deleted, the new file is refused. Safe to
use from many threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from chain.errors import Environment
from chain.multihash import Multihash
from chain.store.files import disk, make_folder

OPENING_SECONDS: Final = 60.0
"""Seconds in which a reader opens a file that it asked for."""


class VolumeCache:
    """The cached files of one volume."""

    def __init__(
        self, folder: Path, limit: int, is_held: Callable[[Multihash], bool], now: Callable[[], float]
    ) -> None:
        """``now`` returns the seconds of a monotonic clock. Raises Environment."""
        self.limit = limit
        self._folder, self._is_held, self._now = folder, is_held, now
        self._lock = threading.Lock()
        self._parts = 0
        self._files: OrderedDict[Multihash, tuple[int, float]] = OrderedDict()
        """Size of each file, and when it was asked for; the most recently used one is last."""
        make_folder(folder)
        with disk(folder):
            for file in sorted(folder.iterdir(), key=lambda each: each.stat().st_mtime_ns):
                if file.suffix:
                    file.unlink()
                else:
                    self._files[Multihash.parse(file.name)] = (file.stat().st_size, now() - OPENING_SECONDS)

    @property
    def bytes(self) -> int:
        """The bytes of all files."""
        with self._lock:
            return self._total()

    def find(self, name: Multihash) -> Path | None:
        """Returns the file of an object, or ``None``, and counts it as used."""
        with self._lock:
            found = self._files.get(name)
            if found is None:
                return None
            if not self._file(name).is_file():
                del self._files[name]
                return None
            self._files[name] = (found[0], self._now())
            self._files.move_to_end(name)
            return self._file(name)

    def part(self) -> Path:
        """Returns a new path to write a file to."""
        with self._lock:
            self._parts += 1
            return self._folder / f"{self._parts}.part"

    def keep(self, name: Multihash, part: Path, size: int) -> Path:
        """Takes over a written file and returns its path. Raises Environment if there is no room."""
        with self._lock, disk(part):
            self._make_room(size)
            part.chmod(0o444)
            part.replace(self._file(name))
            self._files[name] = (size, self._now())
            self._files.move_to_end(name)
        return self._file(name)

    def drop(self, name: Multihash) -> None:
        """Deletes the file of an object."""
        with self._lock, disk(self._folder):
            self._files.pop(name, None)
            self._file(name).unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        too_many = self._total() + size - self.limit
        before = self._now() - OPENING_SECONDS
        for name, (each, used) in list(self._files.items()):
            if too_many <= 0:
                return
            if used <= before and not self._is_held(name):
                self._file(name).unlink(missing_ok=True)
                del self._files[name]
                too_many -= each
        if too_many > 0:
            raise Environment(
                f"the cache of the volume has no space for {size:,} bytes more: {self.limit:,} are in use at once",
                rule="volume-cache-full",
                hint="raise volumePolicy.cache of the volume, or ask for less at a time",
            )

    def _total(self) -> int:
        return sum(size for size, _ in self._files.values())

    def _file(self, name: Multihash) -> Path:
        return self._folder / str(name)
