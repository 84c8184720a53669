"""Prepares a fetched file before it is read: decompresses it, and runs pipes if the machine's owner permits them.

Streams in bounded memory, writes only into the folder it is given, ends when it is cancelled.
"""

from __future__ import annotations

import gzip
import io
import os
import signal
import subprocess
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

import trio

from chain.errors import Environment, Invalid, NotFound, Refused
from chain.model.source import CompressionFormat, Decompress, Pipe, PrepStep
from chain.wording import plural
from engines.spark.ingest.unpack import UnpackBounds, Unpacking, chosen, member_names
from odfd.errors import sole_fault
from odfd.ingest.file_writer import FileWriter
from odfd.ingest.settings import CHUNK, Check, IngestSettings, unstoppable

_GZIP: Final = b"\x1f\x8b"
_TOLD_MEMBERS: Final = 5
MAX_AT_ONCE: Final = 8 << 20
"""Bytes of the list of members of a zip, some 100,000 of them; in memory it takes several times as much."""
MAX_SAID: Final = 500
"""Bytes of what a command wrote to its standard error that are shown."""


class Prepared(NamedTuple):
    path: Path
    remarks: tuple[str, ...] = ()
    """What was chosen on the way, for people."""


async def prepare(
    path: Path,
    steps: Sequence[PrepStep],
    folder: Path,
    settings: IngestSettings,
    *,
    name: str = "",
    decoded: bool = False,
) -> Prepared:
    """Returns the file after all steps; ``path`` itself when there is none. Raises Invalid, Refused, Environment.

    ``name`` is what messages call it, if that is not the file's name. ``decoded``: gzip was undone on its way, which
    a first step may have meant.
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
                file = PackedFile(path, name, settings, trio.from_thread.check_cancelled)
                remarks += await trio.to_thread.run_sync(inflate, file, step, target)
            case Pipe(command=command):
                await _pipe(path, command, target, settings)
        path = target
    return Prepared(path, tuple(remarks))


def _is_for(step: PrepStep, format_: CompressionFormat) -> bool:
    return isinstance(step, Decompress) and step.format is format_


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_GZIP)) == _GZIP


class PackedFile(NamedTuple):
    path: Path
    name: str
    settings: IngestSettings
    check: Check = unstoppable
    """Called at every block of bytes; may raise to stop the work."""


class _Watched(io.BufferedReader):
    """A packed file whose reader can be stopped wherever it is, also where nothing comes out of what it reads, and
    takes no list of members beyond all measure at once."""

    def __init__(self, file: PackedFile) -> None:
        super().__init__(io.FileIO(file.path))
        self._file, self._size = file, file.path.stat().st_size

    def read(self, size: int | None = -1, /) -> bytes:
        """Raises Invalid, and what the file's check raises."""
        self._file.check()
        at_once = self._size - self.tell() if size is None or size < 0 else size
        if at_once > MAX_AT_ONCE:
            raise Invalid(
                f"the list of files in {self._file.name} has more than {MAX_AT_ONCE:,} bytes",
                rule="prepare-zip",
                hint="unpack it before, and name the files by FilesGlob",
            )
        return super().read(size)


def inflate(file: PackedFile, step: Decompress, target: Path) -> tuple[str, ...]:
    """Decompresses a file. Returns remarks on the selection. Blocking. Raises as ``prepare``."""
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
            matched = names if member is None else chosen(names, member)
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
    """Checks steps before there is a file. Raises Refused."""
    for step in steps:
        if isinstance(step, Pipe):
            _check_allowed(step.command, settings)


def _check_allowed(command: Sequence[str], settings: IngestSettings) -> None:
    if not settings.allow_pipe:
        raise Refused(
            f"prepare: Pipe would run {' '.join(command)!r} as this user",
            rule="prepare-pipe",
            hint="set ingest.allow-pipe = true if you trust all who write manifests",
        )


async def _pipe(path: Path, command: Sequence[str], target: Path, settings: IngestSettings) -> None:
    """Runs a command; it and its children end at the time limit, and when the caller no longer waits."""
    _check_allowed(command, settings)
    try:
        with await trio.to_thread.run_sync(path.open, "rb") as source:
            process = await trio.lowlevel.open_process(
                list(command),
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**settings.environment, **settings.variables},
                start_new_session=True,
            )
    except OSError as error:
        raise Environment(f"cannot run {command[0]}: {error.strerror}", rule="prepare-pipe") from error
    stderr = bytearray()
    try:
        with trio.fail_after(settings.pipe_timeout):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_listen, process, stderr)
                nursery.start_soon(_take, process, command[0], target, settings)
            await process.wait()
    except BaseExceptionGroup as error:
        raise sole_fault(error) or error from None
    except trio.TooSlowError as error:
        raise Refused(
            f"{command[0]} ran over {settings.pipe_timeout:g} s",
            rule="prepare-pipe",
            hint="raise ingest.pipe-seconds of the settings, if it needs longer",
        ) from error
    finally:
        with trio.CancelScope(shield=True):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            for stream in (process.stdout, process.stderr):
                assert stream is not None
                await stream.aclose()
    if process.returncode:
        raise Invalid(
            f"{command[0]} ended with {process.returncode}: {stderr.decode('utf-8', 'replace').strip()}",
            rule="prepare-pipe",
        )


async def _take(process: trio.Process, name: str, target: Path, settings: IngestSettings) -> None:
    assert process.stdout is not None
    with FileWriter(target, f"what {name} gave", settings) as out:
        async for block in process.stdout:
            await trio.to_thread.run_sync(out.write, bytes(block))


async def _listen(process: trio.Process, stderr: bytearray) -> None:
    """Keep the end of what it complains of."""
    assert process.stderr is not None
    async for block in process.stderr:
        stderr += block
        del stderr[:-MAX_SAID]
