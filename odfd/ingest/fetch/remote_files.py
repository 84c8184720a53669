"""Asks for files of a server as a source, a single one or those of a pattern, for any protocol, and interprets them."""

from __future__ import annotations

from collections.abc import Iterable

from chain.errors import Invalid, NotFound, Remote
from chain.instant import Instant
from chain.model.events import SourceState
from chain.model.source import (
    EventTimeSource,
    FetchFilesGlob,
    FetchUrl,
    FromMetadata,
    FromPath,
    FromSystemTime,
    SourceOrdering,
)
from engines.contract import SkippedFile
from odfd.ingest.bucket_objects import ObjectPosition, decode
from odfd.ingest.clients.remote_files import Pattern, RemoteFile, RemoteFileResult
from odfd.ingest.fetch.files import DEFAULT_FORMAT, time_in_path
from odfd.ingest.fetch.source import DEFAULT_SOURCE, ETAG, OBJECT, Fetched, FetchJob, FetchOutcome, Unchanged
from p2p.dial import resolve
from p2p.ip import anywhere


def pattern_of(step: FetchUrl | FetchFilesGlob, job: FetchJob) -> Pattern | None:
    """Returns the pattern's order and position; ``None`` for a single file. Raises Invalid if the order was changed."""
    if isinstance(step, FetchUrl):
        return None
    known, order = job.value_of(OBJECT), step.order or SourceOrdering.BY_NAME
    last = None if known is None else decode(known)
    if last is not None and last.order != order.value:
        raise Invalid(
            f"files were taken in the order {last.order}, and now {order.value} is said",
            rule="files-order",
            hint=f"say order: {last.order}, or read into another dataset: some would be read twice or never",
        )
    return Pattern(order=order.value, last=last, now=job.now)


async def reach(host: str, port: int, job: FetchJob, shown: str, rule: str) -> tuple[str, ...]:
    """Returns the addresses of a server that may be dialled. Raises Remote."""
    try:
        found = await resolve(host, port, job.settings.may_dial or anywhere)
    except OSError as error:
        raise Remote(f"{shown}: there is no host of this name", rule=rule, hint="check the URL") from error
    return tuple(map(str, found))


def outcome_of(
    step: FetchUrl | FetchFilesGlob, done: RemoteFileResult, job: FetchJob, shown: str, pattern: Pattern | None
) -> FetchOutcome:
    """Returns the outcome of a fetch of a file that was listed. Raises NotFound if no file fits a new pattern."""
    late = late_files(done.behind, job)
    if done.found is None and pattern is not None and pattern.last is None:
        raise NotFound(
            f"no file matches {shown}, or the only ones were written just now",
            rule=done.rule,
            hint="* stays within one folder; files are left for 10 seconds",
        )
    if done.found is None:
        return Unchanged(late)
    return Fetched(
        path=job.folder / "download",
        name=done.found.key.rpartition("/")[2],
        identity=f"sha3-256:{done.digest}",
        event_time=event_time(step.event_time, done.found, job.now, is_pattern=pattern is not None),
        state=state_of(done.found, pattern),
        has_more=done.more,
        skipped=late,
    )


def state_of(found: RemoteFile, pattern: Pattern | None) -> SourceState:
    """Returns the source state after a file was taken."""
    if pattern is None:
        return SourceState(source_name=DEFAULT_SOURCE, kind=ETAG, value=found.version)
    position = ObjectPosition.of(found.as_object(), SourceOrdering(pattern.order)).encode()
    return SourceState(source_name=DEFAULT_SOURCE, kind=OBJECT, value=position)


def late_files(behind: Iterable[RemoteFile], job: FetchJob) -> tuple[SkippedFile, ...]:
    """Returns the files of ``behind``, which are before the position, that came or changed too late."""
    if job.taken is None:
        return ()
    return job.taken.late([(each.key, each.version, each.as_object().modified) for each in behind])


def event_time(said: EventTimeSource | None, found: RemoteFile, now: Instant, *, is_pattern: bool) -> Instant | None:
    """Returns the event time for rows that have none. Raises Invalid for a path without one."""
    match said:
        case FromSystemTime():
            return now
        case FromPath(pattern=pattern, timestamp_format=form):
            return time_in_path(found.key, pattern, form or DEFAULT_FORMAT)
        case None if is_pattern:
            return None
        case FromMetadata() | None:
            return found.as_object().modified
