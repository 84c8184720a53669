"""Resolves the local file that a source names, and refuses paths outside the permitted folders.

A manifest may be written by others than those who run the daemon, and ingested data may be published. A path in it
therefore never reads the node's own directory with its keys, a file outside the folders that the settings allow, or
files that the kernel generates (``/proc/self/environ`` has the daemon's secrets). Links are followed before a path is
judged. A FIFO, a socket or a device is refused and never opened: reading one may wait for ever, or change something.
Blocking.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import itertools
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from chain.errors import Environment, Invalid, NotFound

_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


_KERNEL: Final = (Path("/proc"), Path("/sys"), Path("/dev"))
"""Directories whose files the kernel generates."""
_MEMORY: Final = (Path("/dev/shm"),)  # noqa: S108 - named to be told from devices
"""Folders below these that hold plain files nevertheless."""
BASE_KIND: Final = "source-base"
"""Kind of the record that keeps, on this node only, the folder in which a dataset's relative source paths begin."""


class LocalFiles(NamedTuple):
    """The files of this machine that sources may read."""

    own: tuple[Path, ...] = ()
    """Folders of the node itself: nothing in them is read."""
    folders: tuple[Path, ...] = ()
    """The only folders that files are read from; empty: any folder."""

    def check(self, path: Path, text: str) -> Path:
        """Resolves ``path``, whose file may be absent. ``text``: its name for people. Raises Invalid."""
        real = _resolve(path, text)
        if _lies_in(real, self.own):
            raise Invalid(
                f"{text} is in the node's own directory",
                rule="source-own",
                hint="a source never reads the node's own files, such as its keys; copy the file elsewhere",
            )
        if _lies_in(real, _KERNEL) and not _lies_in(real, _MEMORY):
            leads = "" if real == path else f" leads to {real}, which"
            raise Invalid(
                f"{text}{leads} is no file of a disk: the kernel makes it up",
                rule="source-kernel",
                hint="a source reads regular files, none in /proc, /sys or /dev; write what is there to a file",
            )
        if self.folders and not _lies_in(real, self.folders):
            leads = "" if real == path else f", which is {real},"
            raise Invalid(
                f"{text}{leads} is outside the folders that sources may read",
                rule="source-folder",
                hint=f"these are {', '.join(map(str, self.folders))}: [ingest] folders of the settings",
            )
        return real

    def check_pattern(self, pattern: str) -> None:
        """Checks whether all possible matches of a glob pattern may be read, before files exist. Raises Invalid."""
        parts = Path(pattern).parts
        fixed = Path(*itertools.takewhile(lambda part: not glob.has_magic(part), parts[:-1]))
        real = _resolve(fixed, pattern)
        if not any(_lies_in(folder, (real,)) for folder in self.folders):
            self.check(fixed, pattern)

    def check_file(self, path: Path, text: str) -> None:
        """Checks the path of one file before it is read, as far as it exists. Raises Invalid."""
        real = self.check(path, text)
        with contextlib.suppress(OSError):  # it may appear, or become readable, until it is read
            _check_kind(real.stat().st_mode, text)

    def file(self, path: Path, text: str) -> Path:
        """Resolves ``path`` to a regular file. Raises Invalid, NotFound, Environment."""
        real = self.check(path, text)
        try:
            _check_kind(real.stat().st_mode, text)
            # Without waiting: by now it may have become a FIFO (test_only_regular_files_are_opened).
            os.close(os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except FileNotFoundError as error:
            raise NotFound(f"no file {text}", rule="source-file", hint="the daemon must be able to see it") from error
        except OSError as error:
            raise Environment(
                f"cannot read {text}: {error.strerror}",
                rule="source-file",
                hint="the daemon's user must be allowed to read it" if error.errno == errno.EACCES else "",
            ) from error
        return real


def _check_kind(mode: int, text: str) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for matches, name in _KINDS if matches(mode)), "no regular file")
        raise Invalid(f"{text} is {kind}", rule="source-file", hint="a source reads regular files")


def _resolve(path: Path, text: str) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links; a NUL
        raise Invalid(
            f"{text!r} is no path to a file: {error}", rule="source-path", hint="see it with ls -l"
        ) from error


def _lies_in(path: Path, folders: Sequence[Path]) -> bool:
    return any(path == folder or folder in path.parents for folder in folders)
