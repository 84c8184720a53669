"""Parses a stream of server-sent events, from bytes in any pieces. Pure. HTML Living Standard, 9.2.6.

Each event must have an id of its own: otherwise nothing tells where to continue.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from chain.errors import Invalid, Refused

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
    """Takes the bytes of a stream, and yields events as they become complete."""

    def __init__(self) -> None:
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
            self._bound(len(line))
            if line:
                self._field(line)
            elif (event := self._event()) is not None:
                yield event
        self._bound(len(self._rest), keep=False)

    def _bound(self, more: int, *, keep: bool = True) -> None:
        if self._size + more > MAX_EVENT:
            raise Refused(f"an event has more than {MAX_EVENT:,} characters", rule=RULE, hint="is it the right stream?")
        self._size += more if keep else 0

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
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
                "an event has no id of its own, or none that a header may hold: nothing would say where to go on",
                rule=RULE,
                hint="the server writes `id:` with each event; without, take it in with a tool of your own",
            )
        return ServerEvent(name, fields.get("event", "message"), "\n".join(data))
