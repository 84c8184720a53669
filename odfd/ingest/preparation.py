"""Prepares a fetched file before it is read: decompresses it, and runs the commands of pipes in a sandbox.

Streams in bounded memory, writes only into the folder it is given, ends when it is cancelled. Commands run over the
programs of this machine: without a network, without files but those of /usr, in bounded memory and time.
``ingest.pipe`` of the settings may give them the rights of the daemon's user instead, or refuse all. Commands in
manifests of other nodes never run.
"""

from __future__ import annotations

import gzip
import io
import shutil
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Final, NamedTuple

import trio

from chain.errors import Environment, Invalid, NotFound, Refused
from chain.model.source import CompressionFormat, Decompress, Pipe, PrepStep
from chain.wording import plural
from engines.errors import EngineLost
from engines.sandbox.base import Job, PlainProcess, Sandbox, SandboxLevel
from engines.sandbox.cgroups import Groups
from engines.sandbox.process import ConfinedProcess, start
from engines.spark.ingest.unpack import UnpackBounds, Unpacking, choose_members, member_names
from odfd.ingest.containers import OutputFile, ProcessEnd
from odfd.ingest.file_writer import FileWriter
from odfd.ingest.settings import CHUNK, Check, IngestSettings, unstoppable
from odfd.runtime.hanging_calls import end_if_unwanted

_PROCESSES: Final = 64
"""Processes of a command at once, threads included, if they can be counted."""
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
"""Search path for programs inside of a sandbox."""
_WRAP: Final = ("/usr/bin/env", "-u", "PYTHONPATH")
"""Unsets PYTHONPATH, so that a command in Python does not load our own packages."""
_ALLOW: Final = 'ingest.pipe = "user" of the settings runs it as the daemon\'s user'


def check_command(command: Sequence[str], settings: IngestSettings) -> None:
    """Checks a command as far as possible without trying a sandbox. Raises Refused, Invalid."""
    if not command:
        raise Invalid("prepare: Pipe names no command", rule="prepare-pipe", hint="command: [program, argument, …]")
    if settings.pipe == "never":
        raise Refused(
            f"prepare: Pipe would run {' '.join(command)!r}, and no commands are run here",
            rule="prepare-pipe",
            hint='ingest.pipe = "sandbox" of the settings runs them without a network and without files',
        )
    if settings.pipe == "sandbox" and shutil.which("bwrap") is None:
        raise _no_sandbox(command, "bubblewrap (bwrap) is not installed")


async def run_command(path: Path, command: Sequence[str], target: Path, settings: IngestSettings) -> None:
    """Runs a command on a file and writes its output to ``target``. All its processes end, however this ends.

    Raises Refused (not allowed, too much time or output), Invalid (it failed), Environment (it cannot be started).
    """
    check_command(command, settings)
    sandbox, groups, environment = await _confinement(command, settings)
    if shutil.which(command[0], path=environment.get("PATH", _PATH)) is None:
        where = environment.get("PATH", _PATH)
        raise Environment(f"cannot run {command[0]}: no such program in {where}", rule="prepare-pipe")
    job = Job(
        argv=(*_WRAP, *command),
        env={**environment, **settings.variables},
        mounts=(),
        memory=settings.pipe_memory,
        total=settings.pipe_memory,
        processes=_PROCESSES if sandbox.level is not SandboxLevel.NONE else None,
    )
    try:
        process = start(sandbox, job, groups)
    except EngineLost as error:
        raise Environment(f"cannot run {command[0]}: {error}", rule="prepare-pipe") from error
    output = OutputFile(target, f"what {command[0]} gave", settings.pipe_timeout)
    try:
        ended = await output.take(process, settings, feed=partial(_feed, path, process))
    except trio.TooSlowError as error:
        raise Refused(
            f"{command[0]} ran over {settings.pipe_timeout:g} s",
            rule="prepare-pipe",
            hint="raise ingest.pipe-seconds of the settings, if it needs longer",
        ) from error
    if ended.code:
        raise _failure(command[0], ended, settings)


async def _confinement(
    command: Sequence[str], settings: IngestSettings
) -> tuple[Sandbox, Groups | None, Mapping[str, str]]:
    """Returns the sandbox, its groups and the environment for a command. Raises Refused if no sandbox works."""
    if settings.pipe == "user":
        return PlainProcess(), None, settings.environment
    try:
        choice = await settings.sandbox.choice()
    except Refused as fault:
        raise _no_sandbox(command, fault.message) from fault
    return choice.sandbox, choice.groups, {"PATH": _PATH, "LC_ALL": "C.UTF-8"}


def _no_sandbox(command: Sequence[str], why: str) -> Refused:
    return Refused(
        f"prepare: Pipe cannot run {' '.join(command)!r} in a sandbox: {why}",
        rule="prepare-pipe",
        hint=f"install bubblewrap; or, if you trust all authors of manifests, {_ALLOW}",
    )


def _failure(name: str, ended: ProcessEnd, settings: IngestSettings) -> Invalid:
    mib = settings.pipe_memory >> 20
    return Invalid(
        f"{name} ended with {ended.code}" + (f": {ended.said}" if ended.said else ""),
        rule="prepare-pipe",
        hint="" if ended.said else f"it may use {mib:,} MiB of memory (ingest.pipe-memory-mib), and has no network",
    )


async def _feed(path: Path, process: ConfinedProcess) -> None:
    """Writes the file to the command's input; a command may end before it has read all."""
    with path.open("rb") as source:
        try:
            while block := await trio.to_thread.run_sync(source.read, CHUNK):
                await process.stdin.send_all(block)
        except trio.BrokenResourceError:
            return
    await process.stdin.aclose()


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
        packed_so = _is_gzip(file.path)
        hint = "check that the file is complete" if packed_so else "leave out the step if the file is not packed"
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
            f"{file.name} is not a zip file we can read: {error}",
            rule="prepare-zip",
            hint="check that the file is complete",
        ) from error
    if member is not None or len(names) == 1:
        return ()
    others = ", ".join(names[1:_TOLD_MEMBERS]) + (", …" if len(names) > _TOLD_MEMBERS else "")
    return (f"{file.name} holds {len(names)} files: {names[0]} was read, and not {others} (subPath chooses)",)


def _copy(source: IO[bytes] | gzip.GzipFile, target: Path, file: PackedFile) -> None:
    growth = Unpacking(file.name, file.path.stat().st_size, UnpackBounds(ratio=file.settings.max_unpack_ratio))
    with FileWriter(
        target, f"{file.name}, unpacked,", file.settings.max_source_bytes, file.settings.disk_reserve
    ) as out:
        while block := source.read(CHUNK):
            file.check()
            out.write(block)
            growth.add(len(block))


def check_prepare(steps: Sequence[PrepStep], settings: IngestSettings) -> None:
    """Checks steps before there is a file. Raises Refused, Invalid."""
    for step in steps:
        if isinstance(step, Pipe):
            check_command(step.command, settings)
