"""Writes a file from arriving or decompressed bytes, under a size limit and the disk's reserve. Blocking.

Also makes and removes, without blocking, the folder that such files lie in.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from chain.errors import Environment, Refused
from odfd.runtime.filesystem import CHECK_ROOM, check_room


class FileWriter(AbstractContextManager["FileWriter"]):
    """Writes a file under limits."""

    def __init__(self, path: Path, what: str, limit: int, reserve: int) -> None:
        """``what``: the file's name in messages; ``limit``: its most bytes; ``reserve``: bytes left on its disk."""
        self._path = path
        self._what = what
        self._limit = limit
        self._reserve = reserve
        self._unchecked = CHECK_ROOM
        self.size = 0

    def __enter__(self) -> Self:
        """Opens the file. Raises Environment."""
        try:
            self._file = self._path.open("wb")
        except OSError as error:
            raise self._full(error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        except OSError as late:
            if error is None:
                raise self._full(late) from late

    def write(self, block: bytes | bytearray) -> None:
        """Appends a block. Raises Refused over the limit, Environment when the disk is full or would be."""
        self.expect(self.size + len(block))
        self.size += len(block)
        self._unchecked += len(block)
        if self._unchecked >= CHECK_ROOM:
            check_room(self._path.parent, self._reserve)
            self._unchecked = 0
        try:
            self._file.write(block)
        except OSError as error:
            raise self._full(error) from error

    def expect(self, size: int) -> None:
        """Checks a size that the file will have. Raises Refused over the limit."""
        if size > self._limit:
            raise Refused(
                f"{self._what} is larger than {self._limit} bytes",
                rule="max-source-bytes",
                hint="raise ingest.source-bytes of the settings",
            )

    def _full(self, error: OSError) -> Environment:
        return Environment(
            f"cannot write {self._path}: {error.strerror or error}", rule="disk", hint="check that the disk is not full"
        )


@asynccontextmanager
async def staged_folder(staging: Path) -> AsyncIterator[Path]:
    """Makes an empty folder under the staging directory, and removes it in any case."""
    import trio  # the processes that read by FTP and SFTP write files too, and need no event loop

    make: Callable[[], str] = partial(tempfile.mkdtemp, prefix="source-", dir=staging)
    folder = Path(await trio.to_thread.run_sync(make))
    try:
        yield folder
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))
