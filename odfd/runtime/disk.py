"""Checks free disk space: refuses writes that would use the reserve that the settings keep free. Blocking."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from chain.errors import Environment

CHECK_ROOM: Final = 64 << 20
"""Bytes that come between two looks at what the disk has left."""


def check_room(folder: Path, reserve: int, needed: int = CHECK_ROOM, why: str = "") -> None:
    """Whether ``needed`` bytes may come, with ``why`` for people. Raises Environment."""
    free = shutil.disk_usage(folder).free
    if free < reserve + needed:
        raise Environment(
            f"{why}, and the disk has {free:,} free" if why else f"the disk has {free:,} bytes free",
            rule="disk-reserve",
            hint=f"free some space; limits.disk-reserve-bytes keeps {reserve:,} of it",
        )
