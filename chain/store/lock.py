"""Locks a state directory for one process; the kernel releases the lock when its holder dies, however it dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Final

from chain.errors import Environment

LOCK_NAME: Final = "lock"


class StateLock:
    """Held from ``acquire`` (or ``with``) to ``release``. The file stays; only the lock on it counts."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK_NAME
        self._file: int | None = None

    def acquire(self) -> None:
        """Raises Environment naming the process that holds the directory, or what the disk said."""
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Environment(
                f"cannot use the state directory {self._path.parent}: {error.strerror}",
                rule="state-directory",
                hint="it must exist and be writable for this user",
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(file, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(file)
            raise Environment(
                f"another odfd (process {holder}) uses the state directory {self._path.parent}",
                rule="state-lock",
                hint="stop it first, or name another directory with --state",
            ) from error
        # For people only; a full disk must not keep a node from its state.
        with contextlib.suppress(OSError):
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> StateLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
