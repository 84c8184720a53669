"""Writes replies to questions: rows as they come with JSON around them, or whole outputs to be hashed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from chain.errors import Fault, Refused
from chain.libraries import pa
from engines.query.frames import HEAD, ROWS, SCHEMA, split_frame
from odfd.control import wire
from odfd.errors import http_status
from odfd.kamu import schemas
from odfd.queries.doors import BUSY, UNPROVEN
from odfd.runtime.http import Send

_JSON: Final = "application/json"
encode: Final = msgspec.json.Encoder().encode
MAX_PROVEN: Final = 4 << 20
"""Most bytes of an output that is hashed as a whole."""
_NOT_DONE: Final = (UNPROVEN, "odata")
"""Rules of faults that do not depend on the caller, answered with 501."""


class Reply:
    """An HTTP response, sent once."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.begun = True
        fields = {"content-type": _JSON, "cache-control": "no-cache", **headers}
        raw = [(name.encode(), value.encode()) for name, value in fields.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def more(self, data: bytes | memoryview, *, last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def whole(self, status: int, value: object, headers: Mapping[str, str] | None = None) -> None:
        body = encode(value)
        await self.begin(status, {"content-length": str(len(body)), **(headers or {})})
        await self.more(body, last=True)

    async def refuse(self, fault: Fault) -> None:
        """Sends a fault. If rows were sent already the connection is cut instead, which the client notices."""
        if self.begun:
            return
        status = 501 if fault.rule in _NOT_DONE else 503 if fault.rule == BUSY else http_status(fault)
        members = {"message": fault.message, "rule": fault.rule, "hint": fault.hint, "place": fault.place}
        also = {"retry-after": "5"} if status == 503 else {}
        problem = {name: text for name, text in members.items() if text}
        await self.whole(400 if status == 422 else status, problem, also)


class Whole:
    """Collects a response, to be hashed before it is sent. Raises Refused if it is too large."""

    def __init__(self) -> None:
        self.begun = False
        self.data = bytearray()

    async def begin(self, _status: int, _headers: Mapping[str, str]) -> None:
        self.begun = True

    async def more(self, data: bytes | memoryview, *, last: bool = False) -> None:
        assert last or data
        self.data += data
        if len(self.data) > MAX_PROVEN:
            hint = f"at most {MAX_PROVEN:,} bytes: a smaller limit; or odfctl sql --prove, there"
            raise Refused("the answer is too large to be proven over HTTP", rule="query-prove", hint=hint)


class JsonRows:
    """Writes the frames of an answer as rows, with the JSON before and after them."""

    def __init__(
        self,
        reply: Reply | Whole,
        before: bytes,
        form: str | None,
        after: Callable[[wire.QueryHead, dict[str, Any]], bytes],
    ) -> None:
        self._reply, self._before, self._form, self._after = reply, before, form, after
        self.layout = ""
        self._head: wire.QueryHead | None = None
        self._members: dict[str, Any] = {}

    async def take(self, frame: bytes | memoryview) -> None:
        """Takes one frame of an answer. Raises Invalid for a schema that its format cannot express."""
        kind, content = split_frame(frame)
        if kind == HEAD:
            self._head = msgspec.json.decode(content, type=wire.QueryHead)
        elif kind == SCHEMA:
            self._members = members_of(self.layout, self._form, pa.ipc.read_schema(pa.py_buffer(content)))
        elif kind == ROWS:
            if not self._reply.begun:
                await self._reply.begin(200, {})
                await self._reply.more(self._before)
            await self._reply.more(content)

    async def end(self) -> None:
        assert self._head is not None
        await self._reply.more(self._after(self._head, self._members), last=True)


def members_of(layout: str, form: str | None, schema: pa.Schema) -> dict[str, Any]:
    """Returns the response's members other than rows."""
    members: dict[str, Any] = {"dataFormat": layout}
    return members if form is None else members | {"schema": schemas.FORMATS[form](schema), "schemaFormat": form}
