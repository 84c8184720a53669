"""Streams of values: lines of JSON, or server-sent events for who asks for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import h11
import msgspec
import pytest
from starlette.requests import Request

from chain.errors import Invalid
from odfd.control import wire
from odfd.control.responses import EventStream, LineStream, SharedValue, lines, since_of, stream_of
from odfd.runtime.http import CHUNKS


def request(query: str = "", **headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw, "query_string": query.encode()})


async def news(*, fails: bool = False) -> AsyncIterator[wire.ResourceNews]:
    yield wire.ResourceNews(version="f00-1", op="Bookmark")
    yield wire.ResourceNews(version="f00-2", op="Bookmark")
    if fails:
        raise Invalid("it ends\nhere", rule="end")


async def sent(response: Any) -> tuple[str, str]:
    """The media type, and all of the body."""
    parts: list[Any] = []

    async def send(part: Any) -> None:
        parts.append(part)

    await response({}, None, send)
    media = dict(parts[0]["headers"])[b"content-type"].decode()
    return media, b"".join(part.get("body", b"") for part in parts[1:]).decode()


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", LineStream),
        ("*/*", LineStream),
        ("application/x-ndjson", LineStream),
        ("text/event-stream", EventStream),
        ("text/html, Text/Event-Stream;q=0.9", EventStream),
    ],
)
def test_a_stream_is_what_is_accepted(accept: str, kind: type) -> None:
    assert stream_of(request(accept=accept)) is kind


def test_a_watch_goes_on_from_the_query_or_the_last_event() -> None:
    assert since_of(request()) is None
    assert since_of(request(last_event_id="f00-7")) == "f00-7"
    assert since_of(request("since=f00-8", last_event_id="f00-7")) == "f00-8"


async def test_server_sent_events_have_versions_and_operations() -> None:
    media, text = await sent(await lines(news(), EventStream))
    assert media.startswith("text/event-stream")
    first, second, rest = text.split("\n\n")
    assert rest == ""
    fields = dict(line.split(": ", 1) for line in second.split("\n"))
    assert first.startswith("id: f00-1\nevent: Bookmark\ndata: {")
    assert (fields["id"], fields["event"]) == ("f00-2", "Bookmark")
    assert msgspec.json.decode(fields["data"])["version"] == "f00-2"


@pytest.mark.parametrize("kind", [LineStream, EventStream])
async def test_chunks_that_are_framed_once_are_the_same_body(kind: type[LineStream]) -> None:
    """Over connections of our own server; the application's messages say nothing of them."""
    machine, chunks = h11.Connection(h11.CLIENT), []
    machine.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    machine.receive_data(b"HTTP/1.1 200 \r\ntransfer-encoding: chunked\r\n\r\n")

    async def put(data: bytes) -> None:
        chunks.append(data)

    async def shared() -> AsyncIterator[SharedValue[wire.ResourceNews]]:
        async for each in news():
            yield SharedValue(each)

    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    await kind(shared())({CHUNKS: put}, None, send)  # type: ignore[arg-type]
    assert b"".join(each.get("body", b"") for each in messages) == b""
    machine.receive_data(b"".join(chunks) + b"0\r\n\r\n")
    body = b""
    while not isinstance(event := machine.next_event(), h11.EndOfMessage):
        body += bytes(event.data) if isinstance(event, h11.Data) else b""
    assert body.decode() == (await sent(kind(shared())))[1]


async def test_a_fault_in_the_middle_is_the_last_event() -> None:
    _, text = await sent(EventStream(news(fails=True)))
    (*_, last, _) = text.split("\n\n")
    assert last.startswith("data: {")
    assert "\n" not in last, "one line, whatever a message has in it"
    assert msgspec.json.decode(last.removeprefix("data: "))["problem"]["rule"] == "end"


async def test_lines_are_as_they_were() -> None:
    media, text = await sent(await lines(news()))
    assert media.startswith("application/x-ndjson")
    assert [msgspec.json.decode(line)["version"] for line in text.splitlines()] == ["f00-1", "f00-2"]
