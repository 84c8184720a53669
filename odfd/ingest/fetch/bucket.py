"""Fetches ``FilesGlob`` sources whose path is a pattern of keys in a bucket: one object per iteration, in their order.

The position in the chain says what is next, so an object is read once, whatever stops a pull. It is read with the tag
that was listed as a condition, in pieces, so that one that is written meanwhile is refused and not mixed.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from chain.errors import Fault, Invalid, NotFound, Refused, Remote
from chain.instant import SECOND, Instant
from chain.model.events import SourceState
from chain.model.fetch_options import BucketAccess
from chain.model.source import FetchFilesGlob, FromMetadata, FromPath, FromSystemTime, SourceOrdering
from engines.contract import SkippedFile
from odfd.ingest.bucket_objects import Keys, ObjectPosition, StoredObject, ahead, decode, in_order
from odfd.ingest.fetch.files import DEFAULT_FORMAT, check_time, time_in_path
from odfd.ingest.fetch.source import DEFAULT_SOURCE, OBJECT, Fetched, FetchJob, FetchOutcome, Source, Unchanged
from odfd.ingest.file_writer import FileWriter
from odfd.ingest.settings import IngestSettings
from odfd.ingest.templates import check_secret, check_text, fill
from odfd.runtime.buckets import (
    CHUNK,
    CREDENTIALS,
    WAYS,
    BucketAddress,
    address_of,
    is_no_bucket,
    kind_of,
    open_store,
)
from odfd.runtime.hanging_calls import end_if_unwanted, run_abandonable

if TYPE_CHECKING:
    from obstore import GetOptions

PIECE: Final = 64 << 20
"""Bytes of one question; a slow store has ``odfd.runtime.buckets:REQUEST_SECONDS`` for each."""
LOOKED_AT: Final = 10_000
"""Objects before the position that are looked at in one pull, to tell of those that came late: others in turn."""
_RULE: Final = "bucket"
_NAMES: Final = {
    "accessKeyId": "access_key_id",
    "secretAccessKey": "secret_access_key",
    "sessionToken": "session_token",
    "serviceAccountKey": "service_account_key",
    "accountKey": "account_key",
    "sasToken": "sas_token",
}
"""Credentials as manifests name them, and as fields; all but the first are secret."""


def place_of(path: str, region: str | None) -> BucketAddress:
    """Raises Invalid."""
    hint = "write s3://BUCKET/FOLDER/*.csv, gs://BUCKET/FOLDER/*.csv or az://ACCOUNT/CONTAINER/FOLDER/*.csv, or"
    hint = f"{hint} s3+https://HOST/BUCKET/FOLDER/*.csv"
    try:
        found = address_of(path, region)
        if not found.below or any(part in ("", ".", "..") for part in found.below.split("/")):
            raise Invalid("a pattern of keys has names between single slashes", rule="bucket-path")
    except Invalid as fault:
        raise Invalid(f"cannot fetch {path}: {fault.message}", rule="bucket-path", hint=hint) from None
    return found


class BucketSource(Source[FetchFilesGlob, BucketAccess]):
    """Objects of a bucket, by a pattern of keys."""

    options_type = BucketAccess

    def check(self, settings: IngestSettings) -> None:
        """Checks a step before a fetch. Raises Invalid."""
        check_text(self.step.path, "the path of FilesGlob")
        place = place_of(self.step.path, self.options.region)
        if isinstance(self.step.event_time, FromPath):
            check_time(self.step.event_time.pattern, self.step.event_time.timestamp_format or DEFAULT_FORMAT)
        given = _credentials(self.options)
        if wrong := [name for name in given if name not in CREDENTIALS[place.store]]:
            known = " and ".join(CREDENTIALS[place.store])
            text = f"{wrong[0]} opens no bucket of {place.store}://"
            raise Invalid(text, rule=_RULE, hint=f"known there: {known}")
        if given and sum(all(name in given for name in way) for way in WAYS[place.store]) != 1:
            ways = " or ".join(" and ".join(way) for way in WAYS[place.store])
            text = f"{' and '.join(given)} {'does' if len(given) == 1 else 'do'} not open a bucket of {place.store}://"
            raise Invalid(text, rule=_RULE, hint=f"give {ways}; or no keys, for a public bucket")
        for name, text in given.items():
            if name != "accessKeyId":
                check_secret(text, "a bucket's key")
            settings.check_variables(text)

    async def fetch(self, job: FetchJob) -> FetchOutcome:
        """Raises NotFound (no object ever matched), Remote, Refused, Invalid, Environment."""
        self.check(job.settings)
        source = _Source(self.step, self.options, job)
        found: FetchOutcome | None = None
        with trio.move_on_after(job.settings.patience.total):
            found = await run_abandonable(source.next)
        if found is None:
            raise Remote(
                f"{self.step.path}: its next object did not come in {job.settings.patience.total:g} s",
                rule=_RULE,
                hint="try again later, or wait longer: ingest.fetch-seconds",
            )
        return found


def _credentials(access: BucketAccess) -> dict[str, str]:
    """Returns the credentials that a step has, by their names in manifests."""
    found = {name: getattr(access, field) for name, field in _NAMES.items()}
    return {name: text for name, text in found.items() if text is not None}


class _Source:
    """One fetch. Blocking."""

    def __init__(self, step: FetchFilesGlob, access: BucketAccess, job: FetchJob) -> None:
        self._step, self._job = step, job
        place = place_of(step.path, access.region)
        filled = {name: fill(text, job.settings.variables).reveal() for name, text in _credentials(access).items()}
        self._store = open_store(place, filled)
        self._keys = Keys(place.below)
        self._order = step.order or SourceOrdering.BY_NAME

    def next(self) -> FetchOutcome:
        known = self._job.value_of(OBJECT)
        last = None if known is None else decode(known)
        if last is not None and last.order != self._order.value:
            raise Invalid(
                f"objects were taken in the order {last.order}, and now {self._order.value} is said",
                rule="bucket-order",
                hint=f"say order: {last.order}, or read into another dataset: some would be read twice or never",
            )
        by_name = self._order is SourceOrdering.BY_NAME
        listed = in_order(self._list(last.key if by_name and last is not None else ""))
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
        return self._take(found[0], has_more=len(found) > 1, late=late)

    def _take(self, found: StoredObject, *, has_more: bool, late: tuple[SkippedFile, ...]) -> Fetched:
        path = self._job.folder / "object"
        digest = self._save(found, path)
        position = ObjectPosition.of(found, self._order).encode()
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

    def _list(self, after: str) -> Iterator[StoredObject]:
        """Objects below the folder of the pattern whose keys are behind ``after``, page by page."""
        import obstore

        with self._translate_faults():
            pages = iter(obstore.list(self._store, self._keys.folder or None, offset=after or None, chunk_size=1000))
        while True:
            end_if_unwanted()
            with self._translate_faults():
                page = next(pages, None)
            if page is None:
                return
            for each in page:
                if each["path"] > after:  # not each store begins its list there
                    yield StoredObject(each["path"], each["size"], each["e_tag"] or "", _instant(each["last_modified"]))

    def _late(self, last: ObjectPosition) -> tuple[SkippedFile, ...]:
        """Returns what lies before the position and is not in the chain as it is now: of many, others in turn."""
        taken = self._job.taken
        if taken is None:
            return ()
        looked_at = list(itertools.islice(self._list(taken.turn), LOOKED_AT))
        taken.turn = looked_at[-1].key if len(looked_at) == LOOKED_AT else ""
        behind = [each for each in looked_at if self._keys.fit(each) and not last.is_before(each)]
        return taken.late([(each.key, each.tag, each.modified) for each in behind])

    def _save(self, found: StoredObject, path: Path) -> str:
        """Reads an object that is as it was listed; the sha3-256 of its bytes. Raises Refused, Remote, Environment."""
        digest = hashlib.sha3_256()
        settings = self._job.settings
        named = f"{found.key} of {self._step.path}"
        with FileWriter(path, named, settings.max_source_bytes, settings.disk_reserve) as file:
            file.expect(found.size)
            for start in range(0, found.size, PIECE):
                for part in self._parts(found, start, min(found.size, start + PIECE)):
                    end_if_unwanted()
                    digest.update(part)
                    file.write(part)
            if file.size != found.size:
                raise self._change_fault()
        return digest.hexdigest()

    def _parts(self, found: StoredObject, start: int, end: int) -> Iterator[bytes]:
        import obstore

        with self._translate_faults():
            tag = found.tag.strip('"')  # lists of Azure have it without the quotes that a condition needs
            options: GetOptions = {"if_match": f'"{tag}"', "range": (start, end)}
            got = obstore.get(self._store, found.key, options=options)
            if not tag or (got.meta["e_tag"] or "").strip('"') != tag or got.range != (start, end):
                raise self._change_fault()  # or it is no store that was led to
            stream = iter(got.stream(min_chunk_size=CHUNK))
        while True:
            with self._translate_faults():
                part = next(stream, None)
            if part is None:
                return
            yield bytes(part)

    def _change_fault(self) -> Remote:
        return Remote(
            f"an object of {self._step.path} changed or went while it was read, and no part of it was kept",
            rule="source-changed",
            hint="pull again",
        )

    @contextmanager
    def _translate_faults(self) -> Iterator[None]:
        """Tells only the kind of obstore's faults: their texts quote servers and what was signed."""
        from obstore import exceptions

        shown = self._step.path
        try:
            yield
        except Fault:
            raise
        except (FileNotFoundError, exceptions.PreconditionError) as error:
            raise (_fault_of(shown, error) if is_no_bucket(error) else self._change_fault()) from None
        except exceptions.InvalidPathError:
            raise Refused(
                f"{shown}: below it is a key with an empty part, . or .., of which no list can be made",
                rule="bucket-key",
                hint="rename that object, or narrow the folder before the first * of the path",
            ) from None
        except exceptions.BaseError as error:
            raise _fault_of(shown, error) from None


def _fault_of(shown: str, error: Exception) -> Fault:
    """By the store's short code: lists fail with an error of no class of its own."""
    kind = kind_of(error)
    if is_no_bucket(error):
        return NotFound(f"{shown}: there is no such bucket", rule=_RULE, hint="check its name")
    if kind.startswith(("401", "403")):
        return Refused(
            f"{shown} refuses this node: {kind}",
            rule="bucket-credentials",
            hint="the right to list the bucket and to read objects is needed: check the keys of the SecretSet",
        )
    return Remote(f"{shown} cannot be asked: {kind}", rule=_RULE, hint="try again later")


def _instant(time: dt.datetime) -> Instant:
    whole = time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return Instant((whole.days * 86_400 + whole.seconds) * SECOND + whole.microseconds // 1000 * 1_000_000)
