"""Fetches ``FilesGlob`` sources whose path is a pattern of keys in a bucket: one object per iteration, in their order.

The position in the chain says what is next, so an object is read once, whatever stops a pull. It is read with the tag
that was listed as a condition, in pieces, so that one that is written meanwhile is refused and not mixed.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from chain.errors import Fault, Invalid, NotFound, Refused, Remote
from chain.instant import SECOND, Instant
from chain.model.events import SourceState
from chain.model.fetch_options import BucketAccess
from chain.model.source import FetchFilesGlob, FromMetadata, FromPath, FromSystemTime, SourceOrdering
from engines.contract import SkippedFile
from odfd.ingest.bucket_objects import Keys, Position, StoredObject, ahead, decode, in_order
from odfd.ingest.fetch.base import DEFAULT_SOURCE, OBJECT, Fetched, FetchJob, FetchOutcome, Unchanged
from odfd.ingest.fetch.files import DEFAULT_FORMAT, check_time, time_in_path
from odfd.ingest.file_writer import FileWriter
from odfd.ingest.settings import IngestSettings
from odfd.ingest.templates import check_secret, check_text, fill
from odfd.runtime.s3 import CHUNK, KEYS, kind_of, open_store

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import S3Store

REGION: Final = "us-east-1"
PIECE: Final = 64 << 20
"""Bytes of one question; a slow store has ``odfd.runtime.s3:REQUEST_SECONDS`` for each."""
LOOKED_AT: Final = 10_000
"""Objects before the position that are looked at in one pull, to tell of those that came late: others in turn."""
_RULE: Final = "bucket"
_PATH: Final = re.compile(r"(s3|s3\+https?)://(.*)\Z", re.DOTALL)
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?\Z")
_REGION: Final = re.compile(r"[a-z0-9-]{1,40}\Z")


class SourceBucket(NamedTuple):
    bucket: str
    endpoint: str
    region: str
    pattern: str
    by_host: bool


def is_bucket(path: str) -> bool:
    """Whether the path of a step is one of keys in a bucket."""
    return _PATH.match(path) is not None


def place_of(path: str, region: str | None) -> SourceBucket:
    """Raises Invalid."""
    found = _PATH.match(path)
    scheme, rest = found.groups() if found is not None else ("", "")
    region = region or REGION
    if scheme == "s3":
        host, (bucket, _, pattern) = "", rest.partition("/")
        endpoint = f"https://{bucket}.s3.{region}.amazonaws.com"
    else:
        host, _, below = rest.partition("/")
        bucket, _, pattern = below.partition("/")
        endpoint = f"{scheme.removeprefix('s3+')}://{host}"
    if not _BUCKET.match(bucket) or (scheme != "s3" and not _HOST.match(host)):
        raise _bad(path, "it names no bucket")
    if not _REGION.match(region):
        raise _bad(path, "its region is none")
    if not pattern or any(part in ("", ".", "..") for part in pattern.split("/")):
        raise _bad(path, "a pattern of keys has names between single slashes")
    return SourceBucket(bucket, endpoint, region, pattern, scheme == "s3")


def _bad(path: str, why: str) -> Invalid:
    hint = "write s3://BUCKET/FOLDER/*.csv, or s3+https://HOST/BUCKET/FOLDER/*.csv"
    return Invalid(f"cannot fetch {path}: {why}", rule="bucket-path", hint=hint)


def check_bucket(step: FetchFilesGlob, access: BucketAccess, settings: IngestSettings) -> None:
    """Checks a step before a fetch. Raises Invalid."""
    check_text(step.path, "the path of FilesGlob")
    place_of(step.path, access.region)
    if isinstance(step.event_time, FromPath):
        check_time(step.event_time.pattern, step.event_time.timestamp_format or DEFAULT_FORMAT)
    if (access.access_key_id is None) != (access.secret_access_key is None):
        raise Invalid("accessKeyId and secretAccessKey go together", rule=_RULE, hint="give both, or neither")
    if access.session_token is not None and access.access_key_id is None:
        raise Invalid("sessionToken is of no use without accessKeyId", rule=_RULE, hint="leave it out")
    for text in filter(None, (access.secret_access_key, access.session_token)):
        check_secret(text, "a bucket's key")
    for text in filter(None, (access.access_key_id, access.secret_access_key, access.session_token)):
        settings.check_variables(text)


async def fetch_bucket(step: FetchFilesGlob, access: BucketAccess, job: FetchJob) -> FetchOutcome:
    """Raises NotFound (no object ever matched), Remote, Refused, Invalid, Environment."""
    check_bucket(step, access, job.settings)
    source = _Source(step, access, job)
    found: FetchOutcome | None = None
    with trio.move_on_after(job.settings.patience.total):
        found = await trio.to_thread.run_sync(source.next, abandon_on_cancel=True)  # type: ignore[call-arg]  # newer than its stubs
    if found is None:
        raise Remote(
            f"{step.path}: its next object did not come in {job.settings.patience.total:g} s",
            rule=_RULE,
            hint="try again later, or wait longer: ingest.fetch-seconds",
        )
    return found


class _Source:
    """One fetch. Blocking."""

    def __init__(self, step: FetchFilesGlob, access: BucketAccess, job: FetchJob) -> None:
        self._step, self._job = step, job
        place = place_of(step.path, access.region)
        values = (access.access_key_id, access.secret_access_key, access.session_token)
        filled = {
            name: fill(text, job.settings.variables).reveal()
            for name, text in zip(KEYS, values, strict=True)
            if text is not None
        }
        self._store: S3Store = open_store(place.bucket, place.endpoint, place.region, filled, by_host=place.by_host)
        self._keys = Keys(place.pattern)
        self._order = step.order or SourceOrdering.BY_NAME

    def next(self) -> FetchOutcome:
        known = self._job.known(OBJECT)
        last = None if known is None else decode(known)
        if last is not None and last.order != self._order.value:
            raise Invalid(
                f"objects were taken in the order {last.order}, and now {self._order.value} is said",
                rule="bucket-order",
                hint=f"say order: {last.order}, or read into another dataset: some would be read twice or never",
            )
        by_name = self._order is SourceOrdering.BY_NAME
        listed = in_order(self._listed(last.key if by_name and last is not None else ""))
        found = ahead(listed, self._keys, last, self._order, self._job.now)
        late = self._late(last) if len(found) < 2 and last is not None else ()
        if not found and last is None:
            raise NotFound(
                f"no object matches {self._step.path}",
                rule=_RULE,
                hint="* stays within one folder; order ByEventTime leaves objects for 10 seconds",
            )
        if not found:
            return Unchanged(late)
        return self._taken(found[0], has_more=len(found) > 1, late=late)

    def _taken(self, found: StoredObject, *, has_more: bool, late: tuple[SkippedFile, ...]) -> Fetched:
        path = self._job.folder / "object"
        digest = self._saved(found, path)
        position = Position.of(found, self._order).encode()
        return Fetched(
            path=path,
            name=found.key,
            identity=f"sha3-256:{digest}",
            event_time=self._event_time(found),
            state=SourceState(source_name=DEFAULT_SOURCE, kind=OBJECT, value=position),
            has_more=has_more,
            skipped=late,
        )

    def _event_time(self, found: StoredObject) -> Instant | None:
        match self._step.event_time:
            case FromMetadata():
                return found.modified
            case FromPath(pattern=pattern, timestamp_format=form):
                return time_in_path(found.key, pattern, form or DEFAULT_FORMAT)
            case FromSystemTime():
                return self._job.now
            case _:
                return None

    def _listed(self, after: str) -> Iterator[StoredObject]:
        """Objects below the folder of the pattern whose keys are behind ``after``, page by page."""
        import obstore

        with self._asked():
            pages = iter(obstore.list(self._store, self._keys.folder or None, offset=after or None, chunk_size=1000))
        while True:
            trio.from_thread.check_cancelled()
            with self._asked():
                page = next(pages, None)
            if page is None:
                return
            for each in page:
                yield StoredObject(each["path"], each["size"], each["e_tag"] or "", _instant(each["last_modified"]))

    def _late(self, last: Position) -> tuple[SkippedFile, ...]:
        """Returns what lies before the position and is not in the chain as it is now: of many, others in turn."""
        taken = self._job.taken
        if taken is None:
            return ()
        looked_at = list(itertools.islice(self._listed(taken.turn), LOOKED_AT))
        taken.turn = looked_at[-1].key if len(looked_at) == LOOKED_AT else ""
        behind = [each for each in looked_at if self._keys.fit(each) and not last.is_before(each)]
        return taken.late([(each.key, each.tag, each.modified) for each in behind])

    def _saved(self, found: StoredObject, path: Path) -> str:
        """Reads an object that is as it was listed; the sha3-256 of its bytes. Raises Refused, Remote, Environment."""
        digest = hashlib.sha3_256()
        with FileWriter(path, f"{found.key} of {self._step.path}", self._job.settings) as file:
            file.expect(found.size)
            for start in range(0, found.size, PIECE):
                for part in self._parts(found, start, min(found.size, start + PIECE)):
                    trio.from_thread.check_cancelled()
                    digest.update(part)
                    file.write(part)
            if file.size != found.size:
                raise self._changed()
        return digest.hexdigest()

    def _parts(self, found: StoredObject, start: int, end: int) -> Iterator[bytes]:
        import obstore

        with self._asked():
            options: GetOptions = {"if_match": found.tag, "range": (start, end)}
            got = obstore.get(self._store, found.key, options=options)
            if not found.tag or got.meta["e_tag"] != found.tag or got.range != (start, end):
                raise self._changed()  # or it is no store that was led to
            stream = iter(got.stream(min_chunk_size=CHUNK))
        while True:
            with self._asked():
                part = next(stream, None)
            if part is None:
                return
            yield bytes(part)

    def _changed(self) -> Remote:
        return Remote(
            f"an object of {self._step.path} changed or went while it was read, and nothing of it was kept",
            rule="source-changed",
            hint="pull again",
        )

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Tells only the kind of obstore's faults: their texts quote servers and what was signed."""
        from obstore import exceptions

        shown = self._step.path
        try:
            yield
        except Fault:
            raise
        except (FileNotFoundError, exceptions.PreconditionError):
            raise self._changed() from None
        except exceptions.InvalidPathError:
            raise Refused(
                f"{shown}: below it is a key with an empty part, . or .., of which no list can be made",
                rule="bucket-key",
                hint="name that object anew, or narrow the folder before the first * of the path",
            ) from None
        except exceptions.BaseError as error:
            raise _refused(shown, error) from None


def _refused(shown: str, error: Exception) -> Fault:
    """By the store's short code: lists fail with an error of no class of its own."""
    kind = kind_of(error)
    if "NoSuchBucket" in kind:
        return NotFound(f"{shown}: there is no such bucket", rule=_RULE, hint="is its name right?")
    if kind.startswith(("401", "403")):
        return Refused(
            f"{shown} refuses this node: {kind}",
            rule="bucket-credentials",
            hint="the right to list the bucket and to read objects is needed: accessKeyId and secretAccessKey",
        )
    return Remote(f"{shown} cannot be asked: {kind}", rule=_RULE, hint="try again later")


def _instant(time: dt.datetime) -> Instant:
    whole = time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return Instant((whole.days * 86_400 + whole.seconds) * SECOND + whole.microseconds // 1000 * 1_000_000)
