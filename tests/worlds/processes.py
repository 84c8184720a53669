"""What Linux says of processes that a test has to do with, whoever started them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def names_of(folder: Path) -> tuple[bytes, ...]:
    """How a folder is named where a process was told of it or sees it mounted: there, by its path in its own file
    system.
    """
    mounted = next(each for each in folder.parents if each.is_mount())
    return bytes(folder), f" /{folder.relative_to(mounted)}".encode()


def computed(jvm: int) -> int:
    """Hundredths of a second that Spark's tasks have had of a core: a query is at work while they grow."""
    total = 0
    for thread in Path(f"/proc/{jvm}/task").iterdir():
        with suppress(OSError):
            name, _, facts = (thread / "stat").read_text().rpartition(")")
            total += sum(map(int, facts.split()[11:13])) if "(Executor task" in name else 0
    return total
