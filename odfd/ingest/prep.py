"""Preparation of a fetched file before it is read: decompression, and pipes where the owner of the machine allows them.

Streams in bounded memory, writes only into the folder it is given, ends when it is cancelled.
"""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import trio

from chain.errors import Environment, Invalid, NotFound, Refused
from chain.model.source import CompressionFormat, Decompress, Pipe, PrepStep
from odfd.errors import sole_fault
from odfd.ingest.settings import CHUNK, Check, IngestSettings, unstoppable
from odfd.ingest.writing import Filling

MAX_SAID: Final = 500
"""Bytes of what a command wrote to its standard error that are shown."""


async def prepare(path: Path, steps: Sequence[PrepStep], folder: Path, settings: IngestSettings) -> Path:
    """The file after all steps; ``path`` itself when there is none. Raises Invalid, Refused, Environment."""
    for number, step in enumerate(steps):
        target = folder / f"prepared-{number}"
        match step:
            case Decompress():
                await trio.to_thread.run_sync(inflate, path, step, target, settings, trio.from_thread.check_cancelled)
            case Pipe(command=command):
                await _pipe(path, command, target, settings)
        path = target
    return path


def inflate(path: Path, step: Decompress, target: Path, settings: IngestSettings, check: Check = unstoppable) -> None:
    """Blocking; ``check`` is called at every block of bytes and may raise to stop the work. Raises as ``prepare``."""
    match step.format:
        case CompressionFormat.GZIP:
            _inflate_gzip(path, target, settings, check)
        case CompressionFormat.ZIP:
            _inflate_zip(path, step.sub_path, target, settings, check)


def _inflate_gzip(path: Path, target: Path, settings: IngestSettings, check: Check) -> None:
    try:
        with gzip.open(path, "rb") as source:
            _copy(source, target, settings, check)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Invalid(f"{path.name} is not whole gzip: {error}", rule="prepare-gzip") from error


def _inflate_zip(path: Path, member: str | None, target: Path, settings: IngestSettings, check: Check) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
            if not names or (member is not None and member not in names):
                raise NotFound(
                    f"no {member or 'file'} in {path.name}",
                    rule="prepare-zip",
                    hint=f"it holds {', '.join(names[:10]) or 'nothing'}",
                )
            with archive.open(member or names[0]) as source:
                _copy(source, target, settings, check)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise Invalid(f"{path.name} is not a zip file we can read: {error}", rule="prepare-zip") from error


def _copy(source: IO[bytes] | gzip.GzipFile, target: Path, settings: IngestSettings, check: Check) -> None:
    with Filling(target, "the unpacked file", settings) as out:
        while block := source.read(CHUNK):
            check()
            out.write(block)


async def _pipe(path: Path, command: Sequence[str], target: Path, settings: IngestSettings) -> None:
    """The command and all that it started end with it, when its time is over, and when nobody waits any more."""
    if not settings.allow_pipe:
        raise Refused(
            f"prepare: Pipe would run {' '.join(command)!r} as this user",
            rule="prepare-pipe",
            hint="set ingest.allow-pipe = true if you trust whoever writes the manifests",
        )
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
    said = bytearray()
    try:
        with trio.fail_after(settings.pipe_timeout):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_listen, process, said)
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
            f"{command[0]} ended with {process.returncode}: {said.decode('utf-8', 'replace').strip()}",
            rule="prepare-pipe",
        )


async def _take(process: trio.Process, name: str, target: Path, settings: IngestSettings) -> None:
    assert process.stdout is not None
    with Filling(target, f"what {name} gave", settings) as out:
        async for block in process.stdout:
            await trio.to_thread.run_sync(out.write, bytes(block))


async def _listen(process: trio.Process, said: bytearray) -> None:
    """Keep the end of what it complains of."""
    assert process.stderr is not None
    async for block in process.stderr:
        said += block
        del said[:-MAX_SAID]
