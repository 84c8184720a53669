"""Preparation of a fetched file before it is read: decompression, and pipes where the owner of the machine allows them.

Blocking, streams in bounded memory, writes only into the folder it is given.
"""

from __future__ import annotations

import gzip
import subprocess
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from chain.errors import Environment, Invalid, NotFound, Refused
from chain.model.source import CompressionFormat, Decompress, Pipe, PrepStep
from odfd.ingest.settings import CHUNK, Check, IngestSettings, unstoppable


def prepare(
    path: Path,
    steps: Sequence[PrepStep],
    folder: Path,
    settings: IngestSettings,
    check: Check = unstoppable,
) -> Path:
    """The file after all steps; ``path`` itself when there is none. Raises Invalid, Refused, Environment.

    ``check`` is called at every block of bytes and may raise to stop the work.
    """
    for number, step in enumerate(steps):
        target = folder / f"prepared-{number}"
        match step:
            case Decompress(format=CompressionFormat.GZIP):
                _inflate_gzip(path, target, settings, check)
            case Decompress(format=CompressionFormat.ZIP, sub_path=member):
                _inflate_zip(path, member, target, settings, check)
            case Pipe(command=command):
                _pipe(path, command, target, settings)
        path = target
    return path


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
    size = 0
    try:
        with target.open("wb") as out:
            while block := source.read(CHUNK):
                check()
                size += len(block)
                if size > settings.max_source_bytes:
                    raise Refused(
                        f"the unpacked file is larger than {settings.max_source_bytes} bytes",
                        rule="max-source-bytes",
                        hint="raise ingest.source-bytes of the settings",
                    )
                out.write(block)
    except gzip.BadGzipFile:
        raise
    except OSError as error:
        raise Environment(f"cannot unpack to {target}: {error.strerror or error}", rule="disk") from error


def _pipe(path: Path, command: Sequence[str], target: Path, settings: IngestSettings) -> None:
    if not settings.allow_pipe:
        raise Refused(
            f"prepare: Pipe would run {' '.join(command)!r} as this user",
            rule="prepare-pipe",
            hint="set ingest.allow-pipe = true if you trust whoever writes the manifests",
        )
    try:
        with path.open("rb") as source, target.open("wb") as out:
            done = subprocess.run(
                list(command),
                stdin=source,
                stdout=out,
                stderr=subprocess.PIPE,
                env={**settings.environment, **settings.variables},
                timeout=settings.pipe_timeout,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise Refused(
            f"{command[0]} ran over {settings.pipe_timeout:g} s",
            rule="prepare-pipe",
            hint="raise ingest.pipe-seconds of the settings, if it needs longer",
        ) from error
    except OSError as error:
        raise Environment(f"cannot run {command[0]}: {error.strerror}", rule="prepare-pipe") from error
    if done.returncode:
        said = done.stderr[-500:].decode("utf-8", "replace").strip()
        raise Invalid(f"{command[0]} ended with {done.returncode}: {said}", rule="prepare-pipe")
