"""Converts values and faults to HTTP answers, and requests to values, under limits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from chain.digits import read_whole
from chain.errors import Fault, Invalid
from engines.query.frames import FAULT, MEDIA_TYPE, frame
from odfd.errors import PROBLEM_JSON, Usage, http_status, sole_faults, to_problem
from odfd.runtime.http import CHUNKS, chunk

T = TypeVar("T")
R = TypeVar("R")


class SharedValue(Generic[T]):
    """A value, with everything that was computed from it. For the tasks of one event loop."""

    __slots__ = ("_made", "value")

    def __init__(self, value: T) -> None:
        self.value = value
        self._made: dict[Callable[[T], Any], Any] = {}

    def once(self, make: Callable[[T], R]) -> R:
        """Returns ``make(value)``, computed once for each ``make``, a function that lives as long as its module."""
        try:
            found: R = self._made[make]
        except KeyError:
            found = self._made[make] = make(self.value)
        return found


MAX_BODY: Final = 8 * 1024 * 1024
"""Largest JSON request, in bytes; manifests take kilobytes. Uploads stream and have limits of their own."""
NDJSON: Final = "application/x-ndjson"
EVENT_STREAM: Final = "text/event-stream"

View: TypeAlias = Callable[[Any], SharedValue[Any]]
"""Converts a value to the one that is sent; a function that lives as long as its module."""
_encoder: Final = msgspec.json.Encoder()


def answer(value: object, status: int = 200) -> Response:
    return Response(_encoder.encode(value), status, media_type="application/json")


def problem(fault: Fault, status: int | None = None, more: Mapping[str, object] | None = None) -> Response:
    """Makes the answer for a fault. ``status``: a closer one than the family's; ``more``: further members."""
    status = status or http_status(fault)
    members = to_problem(fault) | {"status": status} | dict(more or {})
    return Response(_encoder.encode(members), status, media_type=PROBLEM_JSON)


class LineStream(Response):
    """A response of values, one JSON line each, sent as they arrive. A fault in the middle is the last line.

    A ``SharedValue`` is converted, encoded and framed once for all streams of this kind. ``head`` was taken from
    ``values`` beforehand, so that an error at the start has its proper status. ``view`` converts the value of each.
    """

    media_type = NDJSON

    def __init__(self, values: AsyncIterator[Any], head: Sequence[object] = (), view: View | None = None) -> None:
        super().__init__()
        # Starlette has set that of an empty body.
        del self.headers["content-length"]
        self._head, self._values, self._view = head, values, view

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        put = scope.get(CHUNKS)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": b"", "more_body": True})  # the head goes out at once

        async def line(value: object) -> None:
            if isinstance(value, SharedValue):
                value = value if self._view is None else value.once(self._view)
                if put is not None:  # all streams write the same bytes
                    await put(value.once(self._frame))
                    return
                encoded = value.once(self._encode)
            else:
                encoded = self._encode(value)
            await send({"type": "http.response.body", "body": encoded, "more_body": True})

        async with aclosing(cast("Any", self._values)) as values:
            try:
                for value in self._head:
                    await line(value)
                async for value in values:
                    await line(value)
            except Fault as fault:
                await line({"problem": to_problem(fault)})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    @staticmethod
    def _encode(value: Any) -> bytes:
        return _encoder.encode(value) + b"\n"

    @staticmethod
    def _frame(value: Any) -> bytes:
        return chunk(LineStream._encode(value))


class EventStream(LineStream):
    """Sends values as server-sent events: ``id`` is a value's version, ``event`` its operation, ``data`` its JSON."""

    media_type = EVENT_STREAM

    @staticmethod
    def _encode(value: Any) -> bytes:
        lines = [f"id: {version}" if (version := getattr(value, "version", "")) else ""]
        lines += [
            f"event: {op}" if (op := getattr(value, "op", "")) else "",
            f"data: {_encoder.encode(value).decode()}",
        ]
        return ("\n".join(filter(None, lines)) + "\n\n").encode()

    @staticmethod
    def _frame(value: Any) -> bytes:
        return chunk(EventStream._encode(value))


class FrameStream(Response):
    """Sends frames of a query's answer as they come. A fault before the first sets the status; later ones follow."""

    media_type = MEDIA_TYPE

    def __init__(self, ask: Callable[..., Awaitable[None]]) -> None:
        """Calls ``ask`` with a function that sends a whole frame, and descriptors of files that go with it."""
        super().__init__()
        del self.headers["content-length"]
        self._ask = ask

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def give(data: bytes | memoryview, descriptors: Sequence[int] = ()) -> None:
            nonlocal begun
            if not begun:
                begun = True
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": data, "more_body": True, "descriptors": descriptors})

        try:
            with sole_faults():
                await self._ask(give)
        except Fault as fault:
            if not begun:
                await problem(fault)(scope, receive, send)
                return
            await give(frame(FAULT, _encoder.encode(to_problem(fault))))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def lines(values: AsyncIterator[Any], kind: type[LineStream] = LineStream, view: View | None = None) -> Response:
    """Makes a response of lines. Raises whatever the first step of ``values`` raises."""
    async for first in values:
        return kind(values, [first], view)
    return Response(b"", media_type=kind.media_type)


def stream_of(request: Request) -> type[LineStream]:
    """Returns the kind of stream that a request accepts: lines of JSON, or server-sent events."""
    accepted = (each.partition(";")[0].strip().lower() for each in request.headers.get("accept", "").split(","))
    return EventStream if EVENT_STREAM in accepted else LineStream


def since_of(request: Request) -> str | None:
    """Returns the version from which a watch continues: that of the query, or the last one of a server-sent event."""
    return request.query_params.get("since") or request.headers.get("last-event-id") or None


async def whole_body(request: Request) -> bytes:
    """Reads the body of a request. Raises Invalid for one larger than ``MAX_BODY``."""
    parts, size = [], 0
    async with aclosing(request.stream()) as stream:
        async for part in stream:
            size += len(part)
            if size > MAX_BODY:
                raise Invalid(f"the request is larger than {MAX_BODY} bytes", rule="request-size", hint="split it")
            parts.append(part)
    return b"".join(parts)


async def body(request: Request, kind: type[T]) -> T:
    """Decodes the request's JSON as ``kind``; an empty body is an empty object. Raises Invalid with the place."""
    return decode(await whole_body(request) or b"{}", kind)


def decode(data: bytes, kind: type[T]) -> T:
    """Decodes JSON as ``kind``. Raises Invalid with the place."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message, _, place = str(error).partition(" - at ")
        raise Invalid(message, rule="request", place=place.strip("`")) from error


def number(request: Request, name: str, default: int | None, least: int = 0, most: int = 2**63 - 1) -> int | None:
    """Parses a whole number of the query string. Raises Usage."""
    text = request.query_params.get(name)
    if text is None:
        return default
    said = read_whole(text)
    if said is None or not least <= said <= most:
        raise Usage(f"{name} is a whole number from {least} to {most}, not {text[:40]!r}", rule="query")
    return said


_FLAGS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}


def flag(request: Request, name: str) -> bool:
    """Whether a flag of the query string is set. Raises Usage for what is neither true nor false."""
    said = request.query_params.get(name, "")
    if said.lower() not in _FLAGS:
        raise Usage(f"{name} is true or false, not {said[:40]!r}", rule="query")
    return _FLAGS[said.lower()]
