"""Makes writes durable: nothing else of the node calls ``fsync``, so that tests can lose what was not synced.

A disk keeps in no order, and in parts, what was not synced. This holds for a file's bytes and, apart from them, for its
name, which belongs to the folder. Therefore a file is written under another name, synced and renamed, and its folder is
synced; so is the folder above a new folder. SQLite does the same for its own files (``chain.store.database``).
Functions are blocking and raise OSError.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

PRIVATE: Final = 0o600


def draft_of(path: Path) -> Path:
    """Returns the name under which ``writing`` writes a file at first; a crash may leave it."""
    return path.with_name(f".{path.name}.partial")


def write(path: Path, data: bytes, mode: int | None = PRIVATE) -> None:
    """Writes or replaces a file, entirely or not at all."""
    with writing(path, mode) as file:
        file.write(data)


@contextmanager
def writing(path: Path, mode: int | None = PRIVATE, draft: Path | None = None) -> Iterator[BinaryIO]:
    """Opens a file that appears at the end of the block, entirely; not at all if the block raises.

    ``mode``: ``None`` for whatever the umask allows.
    """
    draft = draft or draft_of(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(draft, flags, 0o666 if mode is None else mode), "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)  # whatever the umask takes away, or an earlier draft had
            yield file
            file.flush()
            sync(file.fileno())
        rename(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def append(path: Path, size: int, data: bytes) -> None:
    """Appends to an existing file of ``size`` bytes, entirely or not at all."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        left = data
        while left:
            left = left[os.write(file, left) :]
        sync(file)
    except OSError:
        # If the part cannot be cut off either, the file has another size than the caller knows.
        with suppress(OSError):
            os.ftruncate(file, size)
        raise
    finally:
        os.close(file)


def rename(draft: Path, path: Path) -> None:
    """Gives a synced file or folder its name, in the place of any other file of that name."""
    draft.replace(path)
    sync_folder(path.parent)


def link(draft: Path, path: Path) -> None:
    """Gives a synced file a further name. Raises FileExistsError if another file has it."""
    path.hardlink_to(draft)
    sync_folder(path.parent)


def create(path: Path, mode: int = PRIVATE) -> None:
    """Creates an empty file, if it does not exist."""
    path.touch(mode)
    sync_folder(path.parent)


def remove(*paths: Path) -> None:
    """Removes files of one folder in this order, if they exist, so that none comes back."""
    for path in paths:
        path.unlink(missing_ok=True)
    sync_folder(paths[0].parent)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Creates a folder, and those above it, if they do not exist."""
    if folder.is_dir():
        return
    make_folder(folder.parent, mode)
    folder.mkdir(mode, exist_ok=True)
    sync_folder(folder.parent)


def sync(file: int) -> None:
    """Waits until the bytes of an open file are on its disk, or the names in an open folder."""
    os.fsync(file)


def sync_file(path: Path) -> None:
    """Waits until the bytes of a closed file are on its disk."""
    _sync(path, 0)


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on its disk."""
    _sync(folder, os.O_DIRECTORY)


def sync_tree(folder: Path) -> None:
    """Waits until a folder is on its disk with all that is below."""
    for place, _, files in os.walk(folder, topdown=False):
        for name in files:
            sync_file(Path(place) / name)
        sync_folder(Path(place))


def sync_filesystem(folder: Path) -> None:
    """Waits until all writes to the folder's file system are on its disk, but not for other disks.

    ``os.sync`` does not report a write that failed.
    """
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _c_library().syncfs(opened) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(opened)


def _sync(path: Path, flags: int) -> None:
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        sync(opened)
    finally:
        os.close(opened)


@functools.cache
def _c_library() -> ctypes.CDLL:
    """Returns the C library, for ``syncfs``, which Python lacks."""
    return ctypes.CDLL(None, use_errno=True)
