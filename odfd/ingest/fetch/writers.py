"""Asks the kernel whether a program has a file open for writing.

A read lease on a file is given while nobody has it open for writing, and is given back at once. Only the owner of a
file may ask, and only of file systems of this machine is the answer of use: what another machine writes is not known
here.
"""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path
from typing import Final

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
