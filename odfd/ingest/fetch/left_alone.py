"""Waits until a file of this machine may be taken: until nobody writes to it, as far as that can be told."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from chain.instant import SECOND, Instant
from odfd.ingest.fetch.base import Local
from odfd.ingest.settings import IngestSettings

_LOCAL: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "tmpfs", "overlay"})
"""File systems to which this machine alone writes."""
_MOUNTS: Final = Path("/proc/self/mountinfo")


def no_writer(path: Path) -> bool:
    """Whether the kernel says that nobody has the file open for writing. False too where it does not say. Blocking."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return _is_local(os.fstat(descriptor).st_dev) and _has_lease(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _has_lease(descriptor: int) -> bool:
    """Whoever opens the file for writing meanwhile waits until the lease is back, and we are told by a signal: by one
    that nobody heeds, in place of SIGIO, which would end this process.
    """
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        return False
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True


def _is_local(device: int) -> bool:
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in _MOUNTS.read_text().splitlines():
        where, _, what = line.partition(" - ")
        if where.split(" ", 3)[2] == wanted:
            return what.partition(" ")[0] in _LOCAL
    return False


async def left_alone(local: Local | None, settings: IngestSettings, now: Callable[[], Instant]) -> bool:
    """Whether nobody has written to a file for ``settle`` seconds, or ``settle_closed`` where the system says that no
    program can write to it. ``None``: a copy of our own.
    """
    if local is None or settings.settle <= 0:
        return True

    def alone() -> float:
        return (now() - local.changed) / SECOND

    age = alone()
    if age >= settings.settle:
        return True
    wait = min(settings.settle_closed, settings.settle)
    if age < wait:
        await trio.sleep(min(wait, wait - age))
    if await trio.to_thread.run_sync(_is_closed, local):
        return True
    await trio.sleep(max(0.0, min(settings.settle, settings.settle - alone())))
    return await trio.to_thread.run_sync(local.is_unchanged)


def _is_closed(local: Local) -> bool:
    """Whether nobody can write to a file at this moment, and nobody has. Blocking."""
    return no_writer(local.path) and local.is_unchanged()
