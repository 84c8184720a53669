"""Writes a file from arriving or decompressed bytes, under a size limit and the disk's reserve. Blocking."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from chain.errors import Environment, Refused
from odfd.ingest.settings import IngestSettings
from odfd.runtime.disk import CHECK_ROOM, check_room


class Filling(AbstractContextManager["Filling"]):
    """A file being written. ``what`` is filled in, for messages."""

    def __init__(self, path: Path, what: str, settings: IngestSettings) -> None:
        self._path = path
        self._what = what
        self._limit = settings.max_source_bytes
        self._reserve = settings.disk_reserve
        self._unchecked = CHECK_ROOM
        self.size = 0

    def __enter__(self) -> Self:
        """Raises Environment."""
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
        """Raises Refused over the limit, Environment when the disk is full or would be."""
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
        """It will be so many bytes. Raises Refused."""
        if size > self._limit:
            raise Refused(
                f"{self._what} is larger than {self._limit} bytes",
                rule="max-source-bytes",
                hint="raise ingest.source-bytes of the settings",
            )

    def _full(self, error: OSError) -> Environment:
        return Environment(
            f"cannot write {self._path}: {error.strerror or error}", rule="disk", hint="is the disk full?"
        )
