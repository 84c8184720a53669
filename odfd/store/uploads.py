"""Keeps files that clients uploaded until they are ingested.

Made with the node, in a folder that is emptied at the start, so an upload does not survive a restart. An interrupted
upload leaves nothing; when too many wait, the oldest is deleted.
"""

from __future__ import annotations

import shutil
from collections import OrderedDict
from collections.abc import AsyncIterable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import trio

from chain.errors import Environment, NotFound, Refused
from odfd.runtime.filesystem import CHECK_ROOM, check_room

MAX_WAITING: Final = 64
"""Most uploads that wait to be ingested."""
MAX_NAME: Final = 200
"""Most characters, and bytes, of a file name, kept for messages; file systems take 255 bytes."""
NAMELESS: Final = "upload"


class Uploaded(msgspec.Struct, frozen=True):
    """One uploaded file, in a folder of its own."""

    id: str
    size: int
    path: Path


class Uploads:
    """Keeps the uploaded files of one node. For the event loop; files are written in worker threads."""

    def __init__(
        self, folder: Path, limit: Callable[[], int], new_id: Callable[[], str], reserve: Callable[[], int] = int
    ) -> None:
        """Sets functions: ``limit`` returns the most bytes of a file, ``reserve`` the bytes left free on the disk."""
        self._folder = folder
        self._limit = limit
        self._new_id = new_id
        self._reserve = reserve
        self._waiting: OrderedDict[str, Uploaded] = OrderedDict()

    async def take(self, name: str, chunks: AsyncIterable[bytes]) -> Uploaded:
        """Stores an uploaded file. Raises Refused if it is too large, Environment when the disk refuses."""
        upload_id = self._new_id()
        folder = self._folder / upload_id
        path = folder / safe_name(name)
        try:
            await trio.to_thread.run_sync(folder.mkdir)
            size = await self._write(path, chunks)
        except OSError as error:
            self._drop(folder)
            raise Environment(
                f"cannot keep {name}: {error.strerror}", rule="disk", hint="check that the disk is not full"
            ) from error
        except BaseException:
            self._drop(folder)
            raise
        done = self._waiting[upload_id] = Uploaded(upload_id, size, path)
        while len(self._waiting) > MAX_WAITING:
            self._drop(self._waiting.popitem(last=False)[1].path.parent)
        return done

    async def _write(self, path: Path, chunks: AsyncIterable[bytes]) -> int:
        size, limit, unchecked = 0, self._limit(), CHECK_ROOM
        async with await trio.open_file(path, "wb") as file, aclosing(cast("Any", chunks)) as parts:
            async for part in parts:
                size += len(part)
                if size > limit:
                    raise Refused(
                        f"{path.name} has more than {limit:,} bytes",
                        rule="upload-bytes",
                        hint="cut it into parts, or raise limits.upload-bytes of the settings",
                    )
                unchecked += len(part)
                if unchecked >= CHECK_ROOM:
                    await trio.to_thread.run_sync(check_room, path.parent, self._reserve())
                    unchecked = 0
                await file.write(part)
        return size

    def check(self, ids: Sequence[str]) -> None:
        """Raises NotFound for the first id that is not here."""
        missing = next((id_ for id_ in ids if id_ not in self._waiting), None)
        if missing is not None or not ids:
            raise NotFound(f"no upload {missing or ''!r}", rule="upload", hint="upload the file first")

    def claim(self, ids: Sequence[str]) -> list[Path]:
        """Transfers uploads to the caller, who calls ``done`` at the end. Raises NotFound, and then transfers none."""
        self.check(ids)
        return [self._waiting.pop(id_).path for id_ in dict.fromkeys(ids)]

    async def delete(self, files: Sequence[Path]) -> None:
        """Deletes files, also when the caller is cancelled."""
        with trio.CancelScope(shield=True):
            for file in files:
                await trio.to_thread.run_sync(self._drop, file.parent)

    def _drop(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)


def safe_name(name: str) -> str:
    """Returns the last part of a client's file name, as a valid name here."""
    # A client may send ../../keys/node.key, or a NUL, with which no file can be opened.
    last = Path(name.replace("\0", "")).name[-MAX_NAME:]
    while len(last.encode(errors="surrogateescape")) > MAX_NAME:
        last = last[1:]
    return last if last not in ("", ".", "..") else NAMELESS
