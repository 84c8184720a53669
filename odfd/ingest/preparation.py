"""Prepares a fetched file before it is read: decompresses it, and runs the commands of pipes (``commands``).

Streams in bounded memory, writes only into the folder it is given, ends when it is cancelled.
"""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

import trio

from chain.errors import Invalid, NotFound
from chain.model.source import CompressionFormat, Decompress, Pipe, PrepStep
from chain.wording import plural
from engines.spark.ingest.unpack import UnpackBounds, Unpacking, choose_members, member_names
from odfd.ingest.commands import check_command, run_command
from odfd.ingest.file_writer import FileWriter
from odfd.ingest.settings import CHUNK, Check, IngestSettings, unstoppable
from odfd.runtime.hanging_calls import end_if_unwanted

_GZIP: Final = b"\x1f\x8b"
_TOLD_MEMBERS: Final = 5
MAX_AT_ONCE: Final = 8 << 20
"""Bytes of a zip's list of members, some 100,000 of them; in memory it takes several times as much."""


class Prepared(NamedTuple):
    """A file after all steps of preparation."""

    path: Path
    remarks: tuple[str, ...] = ()
    """Choices made during preparation, as sentences for people."""


async def prepare(
    path: Path,
    steps: Sequence[PrepStep],
    folder: Path,
    settings: IngestSettings,
    *,
    name: str = "",
    decoded: bool = False,
) -> Prepared:
    """Returns the file after all steps; ``path`` itself if there are none. Raises Invalid, Refused, Environment.

    ``name``: the file's name in messages, if it differs. ``decoded``: the transport's gzip was undone, which a first
    step may have meant.
    """
    name = name or path.name
    remarks: list[str] = []
    if decoded and steps and _is_for(steps[0], CompressionFormat.GZIP) and not _is_gzip(path):
        remarks.append(f"{name}: its server had packed it for the way alone, so there was nothing for Decompress to do")
        steps = steps[1:]
    for number, step in enumerate(steps):
        target = folder / f"prepared-{number}"
        match step:
            case Decompress():
                file = PackedFile(path, name, settings, end_if_unwanted)
                remarks += await trio.to_thread.run_sync(inflate, file, step, target)
            case Pipe(command=command):
                await run_command(path, command, target, settings)
        path = target
    return Prepared(path, tuple(remarks))


def _is_for(step: PrepStep, format_: CompressionFormat) -> bool:
    return isinstance(step, Decompress) and step.format is format_


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_GZIP)) == _GZIP


class PackedFile(NamedTuple):
    """A file to decompress; ``name``: the file's name in messages."""

    path: Path
    name: str
    settings: IngestSettings
    check: Check = unstoppable
    """Called at every block of bytes; may raise to stop the work."""


class _Watched(io.BufferedReader):
    """A packed file whose reader can be stopped at any read, also while nothing is output, and which refuses to read a
    list of members larger than ``MAX_AT_ONCE`` into memory."""

    def __init__(self, file: PackedFile) -> None:
        super().__init__(io.FileIO(file.path))
        self._file, self._size = file, file.path.stat().st_size

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads bytes. Raises Invalid, and the faults of the file's check."""
        self._file.check()
        # zipfile reads its whole directory by one call (test_a_zip_of_members_beyond_measure_is_refused_unread).
        at_once = self._size - self.tell() if size is None or size < 0 else size
        if at_once > MAX_AT_ONCE:
            raise Invalid(
                f"the list of files in {self._file.name} has more than {MAX_AT_ONCE:,} bytes",
                rule="prepare-zip",
                hint="unpack it before, and name the files by FilesGlob",
            )
        return super().read(size)


def inflate(file: PackedFile, step: Decompress, target: Path) -> tuple[str, ...]:
    """Decompresses a file. Returns remarks on the choice of a member. Blocking. Raises as ``prepare`` does."""
    match step.format:
        case CompressionFormat.GZIP:
            return _inflate_gzip(file, target)
        case CompressionFormat.ZIP:
            return _inflate_zip(file, step.sub_path, target)


def _inflate_gzip(file: PackedFile, target: Path) -> tuple[str, ...]:
    try:
        with _Watched(file) as packed, gzip.GzipFile(fileobj=packed) as source:
            _copy(source, target, file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        hint = "is the whole file there?" if _is_gzip(file.path) else "leave out the step if the file is not packed"
        raise Invalid(f"{file.name} is not whole gzip: {error}", rule="prepare-gzip", hint=hint) from error
    return ()


def _inflate_zip(file: PackedFile, member: str | None, target: Path) -> tuple[str, ...]:
    try:
        with _Watched(file) as packed, zipfile.ZipFile(packed) as archive:
            names = member_names(archive)
            matched = names if member is None else choose_members(names, member)
            if member is not None and len(matched) > 1:
                raise Invalid(
                    f"{plural(len(matched), 'file')} of {file.name} match {member!r}: {', '.join(matched[:10])}",
                    rule="prepare-zip",
                    hint=f"leave out the step, and say `members: {member!r}` in the read step to read them all",
                )
            if not matched:
                raise NotFound(
                    f"no {member or 'file'} in {file.name}",
                    rule="prepare-zip",
                    hint=f"it holds {', '.join(names[:10]) or 'nothing'}",
                )
            with archive.open(matched[0]) as source:
                _copy(source, target, file)
    # zipfile raises NotImplementedError for a method that it does not know, and RuntimeError for a password.
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise Invalid(
            f"{file.name} is not a zip file we can read: {error}", rule="prepare-zip", hint="is the whole file there?"
        ) from error
    if member is not None or len(names) == 1:
        return ()
    others = ", ".join(names[1:_TOLD_MEMBERS]) + (", …" if len(names) > _TOLD_MEMBERS else "")
    return (f"{file.name} holds {len(names)} files: {names[0]} was read, and not {others} (subPath chooses)",)


def _copy(source: IO[bytes] | gzip.GzipFile, target: Path, file: PackedFile) -> None:
    growth = Unpacking(file.name, file.path.stat().st_size, UnpackBounds(ratio=file.settings.max_unpack_ratio))
    with FileWriter(target, f"{file.name}, unpacked,", file.settings) as out:
        while block := source.read(CHUNK):
            file.check()
            out.write(block)
            growth.add(len(block))


def check_prepare(steps: Sequence[PrepStep], settings: IngestSettings) -> None:
    """Checks steps before there is a file. Raises Refused, Invalid."""
    for step in steps:
        if isinstance(step, Pipe):
            check_command(step.command, settings)
