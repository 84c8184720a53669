"""Fetches ``FilesGlob`` sources: local files that appear over time, one per iteration, in the order of their names.

The source state is the name of the last file taken. A file that appears later under a smaller name is not taken: that
is the contract of ordering by name (spec: FetchStep.FilesGlob). It is reported, as is one that changed after it was
taken. A file is taken when nobody writes to it, as far as that can be determined.
"""

from __future__ import annotations

import bisect
import datetime as dt
import fcntl
import glob
import itertools
import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import trio

from chain.errors import Environment, Invalid, NotFound, Remote
from chain.instant import SECOND, Instant
from chain.model.events import SourceState
from chain.model.fetch_options import RULE, BucketAccess, FetchOptions
from chain.model.source import FetchFilesGlob, FromMetadata, FromPath, FromSystemTime, SourceOrdering
from engines.contract import SkippedFile
from odfd.ingest.fetch.source import (
    DEFAULT_SOURCE,
    ETAG,
    Fetched,
    FetchJob,
    FetchOutcome,
    Local,
    Source,
    Unchanged,
    file_identity,
)
from odfd.ingest.settings import IngestSettings
from odfd.ingest.templates import check_text

DEFAULT_FORMAT = "%Y-%m-%d"
_MICROSECOND = 1000
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


class FilesSource(Source[FetchFilesGlob, None]):
    """Files of this machine, by a pattern."""

    async def fetch(self, job: FetchJob) -> FetchOutcome:
        return await trio.to_thread.run_sync(self._next, job)

    def _next(self, job: FetchJob) -> FetchOutcome:
        """Returns the next file. Raises NotFound if none ever matched, Invalid if the step cannot work, Environment."""
        _check_step(self.step, job.settings)
        found = _find(self.step, job.settings)
        last = job.value_of(ETAG)
        start = 0 if last is None else bisect.bisect_right(found, last, key=os.path.basename)
        ahead = list(itertools.islice(itertools.filterfalse(os.path.isdir, itertools.islice(found, start, None)), 2))
        if not ahead:
            if last is None:
                raise NotFound(
                    f"no file matches {self.step.path}",
                    rule="files-glob",
                    hint="the path is seen from the daemon's machine",
                )
            _check_folder(self.step, job.settings, last)
            return Unchanged(_passed_over(found[:start], job))
        path = Path(ahead[0])
        real = job.settings.readable.file(path, ahead[0])
        try:
            identity, local = file_identity(real), Local.of(real)
        except OSError as error:
            raise Environment(f"cannot read {path}: {error.strerror}", rule="source-file") from error
        return Fetched(
            path=real,
            name=path.name,
            identity=identity,
            event_time=_event_time(self.step, path, job.now),
            state=SourceState(source_name=DEFAULT_SOURCE, kind=ETAG, value=path.name),
            has_more=len(ahead) > 1,
            local=local,
            skipped=_passed_over(found[:start], job) if len(ahead) == 1 else (),
        )

    def check(self, settings: IngestSettings) -> None:
        """Checks a step, and the files that exist now. Raises Invalid. Blocking."""
        _check_step(self.step, settings)
        if Path(self.step.path).is_absolute() or settings.base is not None:
            for path in itertools.filterfalse(os.path.isdir, _find(self.step, settings)):
                settings.readable.check_file(Path(path), path)

    @classmethod
    def misfit(cls, step: FetchFilesGlob, options: FetchOptions) -> Invalid:
        if not isinstance(options, BucketAccess):
            return super().misfit(step, options)
        return Invalid(
            f"{step.path} is no bucket, and has neither region nor keys",
            rule=RULE,
            hint="write path: s3://BUCKET/FOLDER/*.csv, or gs:// or az://, or leave them out",
        )


def _check_folder(step: FetchFilesGlob, settings: IngestSettings, last: str) -> None:
    """Raises NotFound if the folder of the source is gone: else a lost disk would look like a source without news."""
    folders = Path(_absolute(step.path, settings.base)).parts[:-1]
    folder = Path(*itertools.takewhile(lambda part: not glob.has_magic(part), folders))
    if not folder.is_dir():
        hint = f"{last} was taken from it: is its disk mounted? without further files, leave the folder empty"
        raise NotFound(f"there is no folder {folder}", rule="files-glob", hint=hint)


def _passed_over(paths: list[str], job: FetchJob) -> tuple[SkippedFile, ...]:
    """Returns the files that came too late; called once per pull, with its last file."""
    return job.passed_over(paths, job.now) if job.passed_over is not None and paths else ()


def _find(step: FetchFilesGlob, settings: IngestSettings) -> list[str]:
    """Returns the paths that match, in folders that may be read. Raises Invalid."""
    found = matching(_absolute(step.path, settings.base))
    for folder in {os.path.dirname(path) for path in found}:  # noqa: PTH120 - one for many files
        settings.readable.check(Path(folder), folder)
    return found


def _check_step(step: FetchFilesGlob, settings: IngestSettings) -> None:
    if not step.path:
        raise Invalid("path is empty", rule="files-glob", hint="write a pattern of files, like data/*.csv")
    if found := _SCHEME.match(step.path):
        raise Invalid(
            f"FilesGlob takes no files of {found[1]}: {step.path}",
            rule="url-scheme",
            hint="write a path of this machine, or keys of a bucket: s3://BUCKET/FOLDER/*.csv, or gs:// or az://",
        )
    check_text(step.path, "the path of FilesGlob")
    if Path(step.path).is_absolute() or settings.base is not None:
        settings.readable.check_pattern(_absolute(step.path, settings.base))
    if step.order is SourceOrdering.BY_EVENT_TIME:
        raise Invalid("order ByEventTime is not supported", rule="files-order", hint="name files so that ByName fits")
    match step.event_time:
        case FromMetadata():
            raise Invalid(
                "eventTime FromMetadata has no meaning for FilesGlob", rule="event-time-source", hint="use FromPath"
            )
        case FromPath(pattern=pattern, timestamp_format=form):
            check_time(pattern, form or DEFAULT_FORMAT)


def check_time(pattern: str, form: str) -> None:
    """Raises Invalid for a pattern or format that gives no time for any file name."""
    if not _compile(pattern).groups:
        raise Invalid(
            f"{pattern!r} has no group that would be the time",
            rule="event-time-source",
            hint=r"put it in brackets: day-(\d+-\d+-\d+)\.csv",
        )
    try:
        # Of an empty text a usable format says that it does not match, and a bad one what is wrong with it.
        dt.datetime.strptime("", form)
    except (ValueError, re.error) as error:  # re.error: a directive occurs twice
        if "does not match" not in str(error):
            raise Invalid(
                f"timestampFormat {form!r} is not read: {error}",
                rule="event-time-source",
                hint=f"write it like {DEFAULT_FORMAT}",
            ) from error


def _compile(pattern: str) -> re.Pattern[str]:
    """Compiles a regular expression. Raises Invalid."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise Invalid(f"not a regular expression: {pattern!r}: {error}", rule="event-time-source") from error


def _absolute(pattern: str, base: Path | None) -> str:
    """Makes a relative pattern absolute, in the folder ``base`` of this machine. Raises Invalid."""
    if Path(pattern).is_absolute():
        return pattern
    if base is None:
        raise Invalid(
            f"{pattern} is relative, and nothing says to which folder",
            rule="files-base",
            hint="apply the manifest from a file, or write an absolute path",
        )
    # The folder is a name, and may have a * in it.
    return str(Path(glob.escape(str(base))) / pattern)


def matching(pattern: str) -> list[str]:
    """Lists matches of a glob pattern (``*``, ``?``, ``[…]``, ``**``), folders too, sorted by their last path
    components.

    Raises Invalid if two files differ only in their folders.
    """
    found = glob.glob(pattern, recursive=True)  # noqa: PTH207 - patterns may be absolute
    found.sort(key=os.path.basename)
    for _, group in itertools.groupby(found, os.path.basename):
        alike = list(group)
        if len(alike) > 1:
            _refuse_equal_names(list(filter(os.path.isfile, alike)))
    return found


def _refuse_equal_names(files: list[str]) -> None:
    if len(files) > 1:
        raise Invalid(
            f"{files[0]} and {files[1]} have one name",
            rule="files-order",
            hint="files are taken in the order of their names, so each needs its own",
        )


def _event_time(step: FetchFilesGlob, path: Path, now: Instant) -> Instant | None:
    match step.event_time:
        case FromPath(pattern=pattern, timestamp_format=form):
            return time_in_path(str(path), pattern, form or DEFAULT_FORMAT)
        case FromSystemTime():
            return now
        case _:
            return None


def time_in_path(path: str, pattern: str, form: str) -> Instant:
    """Parses the first group of ``pattern`` in ``path`` by ``form``, as UTC by default. Raises Invalid."""
    match = _compile(pattern).search(path)
    if match is None or not match.groups() or match[1] is None:
        raise Invalid(
            f"no event time in {path}: the first group of {pattern!r} matches nothing", rule="event-time-source"
        )
    try:
        found = dt.datetime.strptime(match[1], form)
    except ValueError as error:
        raise Invalid(f"{match[1]!r} in {path} is not a time like {form}", rule="event-time-source") from error
    aware = found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found
    whole = aware - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return Instant((whole.days * 86_400 + whole.seconds) * SECOND + whole.microseconds * _MICROSECOND)


_LOCAL: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "tmpfs", "overlay"})
"""File systems to which this machine alone writes."""
_MOUNTS: Final = Path("/proc/self/mountinfo")


def no_writer(path: Path) -> bool:
    """Whether the kernel reports no process with the file open for writing. False without a report. Blocking."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return _is_local(os.fstat(descriptor).st_dev) and _has_lease(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _has_lease(descriptor: int) -> bool:
    """Takes a read lease on a file: a writer that opens it waits until the lease is released.

    The kernel reports that by SIGURG, which is ignored, instead of SIGIO, which would end this process.
    """
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        return False
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True


def _is_local(device: int) -> bool:
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in _MOUNTS.read_text().splitlines():
        where, _, what = line.partition(" - ")
        if where.split(" ", 3)[2] == wanted:
            return what.partition(" ")[0] in _LOCAL
    return False


async def left_alone(local: Local | None, settings: IngestSettings, now: Callable[[], Instant]) -> bool:
    """Whether a file stayed unwritten for ``settle`` seconds, or closed and unwritten for ``settle_closed``.

    Waits for the rest of that time. True for ``None``, a copy of our own.
    """
    if local is None or settings.settle <= 0:
        return True

    def alone() -> float:
        return (now() - local.changed) / SECOND

    age = alone()
    if age >= settings.settle:
        return True
    wait = min(settings.settle_closed, settings.settle)
    if age < wait:
        # A file may be of a later time than this clock: its age is negative then, and no reason to wait for longer.
        await trio.sleep(min(wait, wait - age))
    if await trio.to_thread.run_sync(_is_closed, local):
        return True
    await trio.sleep(max(0.0, min(settings.settle, settings.settle - alone())))
    return await trio.to_thread.run_sync(local.is_unchanged)


async def check_unchanged(local: Local | None, names: Sequence[str]) -> None:
    """Raises Remote if a file was written to since it was fetched; never for ``None``, a copy of our own."""
    if local is not None and not await trio.to_thread.run_sync(local.is_unchanged):
        text = f"{', '.join(names)} changed while it was read, and no part of it was kept"
        raise Remote(text, rule="source-changed", hint="pull again when it is whole")


def _is_closed(local: Local) -> bool:
    """Whether no process has a file open for writing now, and it is unmodified. Blocking."""
    return no_writer(local.path) and local.is_unchanged()
