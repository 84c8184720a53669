"""Gives the node's files and folders their modes, and keeps the reserve of free disk space. Blocking."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Final

from chain.errors import Environment

CHECK_ROOM: Final = 64 << 20
"""Bytes written between two checks of the free disk space."""


def check_room(folder: Path, reserve: int, needed: int = CHECK_ROOM, why: str = "") -> None:
    """Checks that ``needed`` bytes fit beside the reserve; ``why`` is for people. Raises Environment."""
    free = shutil.disk_usage(folder).free
    if free < reserve + needed:
        raise Environment(
            f"{why}, and the disk has {free:,} free" if why else f"the disk has {free:,} bytes free",
            rule="disk-reserve",
            hint=f"free some space; limits.disk-reserve-bytes keeps {reserve:,} of it",
        )


_OTHERS_WRITE: Final = 0o022
_OWNER: Final = 0o700
_OTHERS: Final = 0o077
_ENTER: Final = 0o011


def set_umask() -> None:
    """Sets the umask of the process: other users cannot write its files, and it can use all of them.

    Whether others may read files outside of the state directory, such as an export, is left to the former umask.
    """
    before = os.umask(_OTHERS)
    os.umask((before | _OTHERS_WRITE) & _OTHERS)


def make_private(directory: Path, *, is_entered: bool = False) -> None:
    """Restricts the state directory and its direct entries to its owner.

    ``is_entered``: others may pass through the directory itself, to a socket in it that they may use. Raises
    Environment if a directory of another user is open to others.
    """
    _narrow(directory, _ENTER if is_entered else 0)
    for entry in os.scandir(directory):
        # chmod follows links, and a link here may lead to what is not the node's.
        if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False):
            _narrow(Path(entry.path), 0)


def _narrow(path: Path, others: int) -> None:
    try:
        before = stat.S_IMODE(path.stat().st_mode)
        wanted = (before | (_OWNER if path.is_dir() else 0o600)) & ~_OTHERS | others
        if wanted != before:
            path.chmod(wanted)
    except FileNotFoundError:
        return  # of a moment
    except OSError as error:
        raise Environment(
            f"cannot keep others out of {path}: {error.strerror}",
            rule="state-directory",
            hint="it holds keys: it must belong to the user that runs the node, as chown makes it",
        ) from error
