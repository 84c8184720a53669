"""Removes containers of sources that a killed life of the node left, before the first of this life."""

from __future__ import annotations

import shutil
from pathlib import Path

import trio

from engines.sandbox.leftovers import label_of, remove_left


class FormerContainers:
    """Removes them once, so that no container of this life is among those that are found."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._is_done = False

    async def remove(self, staging: Path) -> int:
        """Returns the number of containers that were removed by this call. Raises Environment; the next call then
        tries again."""
        async with self._lock:
            binary = shutil.which("podman")
            if self._is_done or binary is None:
                return 0
            count = await remove_left(binary, label_of(staging))
            self._is_done = True
            return count
