"""Fetches ``Sse`` sources: events that a server sends after the id of the last one, in batches.

The header ``Last-Event-ID`` tells the server the last id, and it sends the events after it. A server that sends again
an event that was taken is refused. A fetch ends when no event comes for a while.
"""

from __future__ import annotations

import codecs
import hashlib
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import trio

from chain.errors import Invalid, Refused, Remote
from chain.model.events import SourceState
from chain.model.fetch_options import ServerEvents
from chain.model.source import FetchUrl, ReadStep
from odfd.ingest.fetch.page import PageResponse, page
from odfd.ingest.fetch.source import (
    CREDENTIALS,
    DEFAULT_SOURCE,
    Fetched,
    FetchJob,
    FetchOutcome,
    Source,
    Unchanged,
    check_lines,
    web_step,
)
from odfd.ingest.fetch.url import UrlSource, address_of, headers_of, plain_headers, remedy
from odfd.ingest.file_writer import FileWriter
from odfd.ingest.settings import IngestSettings
from odfd.ingest.templates import FilledTemplate, fill, tells

RULE: Final = "source-sse"
MAX_EVENT: Final = 4 << 20
"""Characters of one event."""
MAX_ID: Final = 4 << 10
"""Characters of an id, which is written to a block and a header."""


class ServerEvent(NamedTuple):
    """One complete event of a stream."""

    id: str
    type: str
    data: str

    def line(self, *, envelope: bool) -> bytes:
        """Returns the event as a line: its data, which is JSON, or all fields with ``envelope``. Raises Invalid."""
        if envelope:
            return msgspec.json.encode({"sse_id": self.id, "sse_event": self.type, "sse_data": self.data}) + b"\n"
        if not self.data.strip():
            raise Invalid(f"event {self.id!r} is empty, which is no JSON", rule=RULE, hint="write envelope: true")
        return self.data.replace("\r", " ").replace("\n", " ").encode() + b"\n"


class EventReader:
    """Takes the bytes of a stream, and yields events as they become complete (HTML Living Standard, 9.2.6)."""

    def __init__(self) -> None:
        # A stream may begin with a byte order mark.
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._rest = ""
        self._fields: dict[str, str] = {}
        self._data: list[str] = []
        self._size = 0

    def feed(self, part: bytes) -> Iterator[ServerEvent]:
        """Yields the events that ``part`` completes. Raises Invalid for one without id, Refused for one too large."""
        text = self._rest + self._decoder.decode(part)
        if held := text.endswith("\r"):  # it may be half of a line's end
            text = text[:-1]
        *lines, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._rest = rest + ("\r" if held else "")
        for line in lines:
            self._check_size(len(line))
            if line:
                self._field(line)
            elif (event := self._event()) is not None:
                yield event
        self._check_size(len(self._rest), keep=False)

    def _check_size(self, more: int, *, keep: bool = True) -> None:
        if self._size + more > MAX_EVENT:
            raise Refused(
                f"an event has more than {MAX_EVENT:,} characters", rule=RULE, hint="check that it is the right stream"
            )
        self._size += more if keep else 0

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        # An id with a NUL is ignored (HTML Living Standard, 9.2.6).
        elif name == "event" or (name == "id" and "\0" not in value):
            self._fields[name] = value

    def _event(self) -> ServerEvent | None:
        fields, data = self._fields, self._data
        self._fields, self._data, self._size = {}, [], 0
        if not data:
            return None
        name = fields.get("id", "")
        if not name or len(name) > MAX_ID or not name.isprintable():
            raise Invalid(
                "an event has no id of its own, or none that a header may hold: nothing would say where to continue",
                rule=RULE,
                hint="the server writes `id:` with each event; without, take it in with a tool of your own",
            )
        return ServerEvent(name, fields.get("event", "message"), "\n".join(data))


LAST_ID: Final = "w3id.org/odfd/sse"
"""Kind of the source states: the id of the last event."""
QUIET: Final = 2.0
"""Seconds without an event after which a fetch ends."""
LONGEST: Final = 30.0
"""Seconds after which a fetch ends in any case."""
MAX_BATCH: Final = 64 << 20
"""Bytes of one transaction."""
_OK, _NO_MORE = 200, 204


class ServerEventsSource(Source[FetchUrl, ServerEvents]):
    """A stream of a web service."""

    options_type = ServerEvents

    async def fetch(self, job: FetchJob) -> FetchOutcome:
        """Fetches the next events. Raises Remote, Refused, Invalid, Environment."""
        self.check(job.settings)
        step = web_step(self.step)
        url, known = fill(step.url, job.settings.variables), job.value_of(LAST_ID)
        address, credentials = address_of(url)
        told = {"Accept": "text/event-stream"} | ({} if known is None else {"Last-Event-ID": known})
        headers = credentials | headers_of(step, job) | plain_headers(told)
        confidential = {name for name, value in headers.items() if value.is_template or name.casefold() in CREDENTIALS}
        sent = {name: value.reveal() for name, value in headers.items()}
        async with page(address, str(url), sent, confidential, job.settings) as found:
            if found.status == _NO_MORE:
                return Unchanged()
            _check_answer(found, url)
            events, lines, is_full = await _read_batch(found, self.options)
        if not events:
            return Unchanged()
        _check_ids(events, known, url)
        last = events[-1].id
        if tells(last, job.settings.variables):
            raise Refused(
                f"{url}: the id of an event holds the value of a variable", rule=RULE, hint="it would be public"
            )
        target = job.folder / "events.ndjson"
        await trio.to_thread.run_sync(_write, lines, target, url, job)
        return Fetched(
            path=target,
            name=urllib.parse.urlsplit(url.written).path.rsplit("/", 1)[-1] or "events",
            identity=f"sha3-256:{hashlib.sha3_256(b''.join(lines) + last.encode()).hexdigest()}",
            event_time=job.now,
            state=SourceState(source_name=DEFAULT_SOURCE, kind=LAST_ID, value=last),
            has_more=is_full,
        )

    def check(self, settings: IngestSettings) -> None:
        """Checks a step before a fetch. Raises Invalid."""
        plain = web_step(self.step)
        if plain.url == self.step.url or not plain.url.lower().startswith(("http://", "https://")):
            raise Invalid(
                f"kind: Sse asks web services: {plain.url}", rule="url-scheme", hint="write https://host/path"
            )
        if self.step.cache or self.step.event_time:
            raise Invalid("cache and eventTime have no meaning for kind: Sse", rule=RULE, hint="leave them out")
        if any(header.name.casefold() == "last-event-id" for header in self.step.headers or ()):
            raise Invalid(
                "Last-Event-ID is the position, which is in the chain", rule=RULE, hint="leave the header out"
            )
        UrlSource(plain, None).check(settings)

    def check_read(self, read: ReadStep) -> None:
        check_lines(read, "kind: Sse")


def _check_answer(found: PageResponse, url: FilledTemplate) -> None:
    if found.status != _OK:
        raise Remote(f"{url} answers {found.status} {found.reason}", rule="url-http", hint=remedy(found.status))
    kind = found.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind != "text/event-stream" or found.headers.get("Content-Encoding", "identity") != "identity":
        raise Invalid(f"{url} answers no stream of events", rule=RULE, hint="check the URL; kind: Http reads pages")


def _check_ids(events: list[ServerEvent], known: str | None, url: FilledTemplate) -> None:
    ids = [event.id for event in events]
    if known in ids or len(set(ids)) < len(ids):
        raise Refused(
            f"{url} sends an event again whose id was taken, so its ids are no position",
            rule="sse-position",
            hint="a server that keeps Last-Event-ID, and gives each event an id of its own, is needed",
        )


async def _read_batch(found: PageResponse, stream: ServerEvents) -> tuple[list[ServerEvent], list[bytes], bool]:
    """Returns the events and lines of one batch, and whether the batch ended because it was full."""
    events: list[ServerEvent] = []
    lines: list[bytes] = []
    reader, size = EventReader(), 0
    with trio.move_on_after(LONGEST):
        async with aclosing(_parts(found.body)) as parts:
            async for part in parts:
                for event in reader.feed(part):
                    line = event.line(envelope=stream.envelope)
                    if events and (len(events) == stream.batch_messages or size + len(line) > MAX_BATCH):
                        return events, lines, True
                    events.append(event)
                    lines.append(line)
                    size += len(line)
    return events, lines, False


async def _parts(body: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yields the parts of a body until it ends, or no part comes for ``QUIET`` seconds."""
    while True:
        part = None
        with trio.move_on_after(QUIET):
            part = await anext(body, None)
        if part is None:
            return
        yield part


def _write(lines: list[bytes], target: Path, url: FilledTemplate, job: FetchJob) -> None:
    with FileWriter(target, str(url), job.settings.max_source_bytes, job.settings.disk_reserve) as file:
        for line in lines:
            file.write(line)
