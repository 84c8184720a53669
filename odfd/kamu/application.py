"""Answers ``/query``, ``/verify``, ``/NAME/tail`` and ``/NAME/metadata`` as kamu's nodes do; all else is the site's.

Field names, formats and statuses are those of kamu's OpenAPI. Rows leave as they are computed; what an answer was made
of stands behind them, in the member ``odfd``. What is not done here is refused by its name: proofs, OData.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa
import trio
from starlette.responses import Response

from chain import instant
from chain.codec.arrow_schema import schema_of
from chain.codec.manifest import to_builtins
from chain.errors import Environment, Fault, NotFound, Refused
from chain.state import ChainState
from engines.query.frames import HEAD, ROWS, SCHEMA, parted
from engines.query.requests import ALL_ROWS, RowSelection
from odfd.control import wire
from odfd.control.responses import FrameStream, answer, problem
from odfd.errors import http_status, sole_faults, told_to_others
from odfd.kamu import commitments, requests, schemas
from odfd.kamu.ports import BUSY, UNPROVEN, PublicAnswers, SendFrame
from odfd.queries.planning import Bound
from odfd.runtime.http import Application, Message, Receive, Send
from odfd.runtime.supervision import Logger
from odfd.site.requests import OWN, is_question, taken

_JSON: Final = "application/json"
_encode: Final = msgspec.json.Encoder().encode
_NOT_DONE: Final = (UNPROVEN, "odata")
"""Rules of what is refused to everybody."""


class KamuApplication:
    """The application. ``site`` answers what is no question."""

    def __init__(self, answers: PublicAnswers, site: Application, logger: Logger) -> None:
        self._answers, self._site, self._logger = answers, site, logger

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if not is_question(scope["path"]):
            return await self._site(scope, receive, send)
        if scope["path"].strip("/").partition("/")[0] == OWN:
            return await self._own(scope, receive, send)
        reply = _Reply(send)
        try:
            with sole_faults():
                await self._answer(scope, receive, reply)
        except Fault as fault:
            await reply.refuse(self._told(fault, scope["path"]))
        return None

    async def _answer(self, scope: Message, receive: Receive, reply: _Reply) -> None:
        method, path = scope["method"], scope["path"].strip("/")
        query = scope.get("query_string", b"").decode("latin-1")
        first, _, rest = path.partition("/")
        if first == "odata":
            raise Refused("OData is not spoken here", rule="odata", hint="GET /query answers in JSON; docs/http.md")
        if method not in (("GET", "POST") if path == "query" else ("POST",) if path == "verify" else ("GET",)):
            await reply.whole(405, {"message": f"{method[:20]} is not understood at /{path[:300]}"})
        elif path == "verify":
            await self._verify(await self._body(receive, reply), reply)
        elif path == "query":
            question = requests.question_in(query) if method == "GET" else None
            if question is None and (body := await self._body(receive, reply)) is not None:
                question = requests.question_of(body)
            if question is not None:
                await self._query(question, reply)
        elif rest == "tail":
            await self._tail(first, requests.tail_in(query), reply)
        else:
            await self._metadata(first, requests.parts_in(query), reply)

    async def _own(self, scope: Message, receive: Receive, send: Send) -> None:
        """What our client asks: rows as the frames of the control API, and what datasets there are."""
        _, _, path = scope["path"].strip("/").partition("/")
        try:
            with sole_faults():
                response = await self._own_response(scope["method"], path, receive)
                await response(scope, receive, send)
        except Fault as fault:
            await problem(self._told(fault, scope["path"]))(scope, receive, send)

    async def _own_response(self, method: str, path: str, receive: Receive) -> Response:
        if (method, path) == ("POST", "query"):
            said = await taken(receive, requests.MAX_BODY)
            request = requests.own_question_of(said if isinstance(said, bytes) else b"")
            return FrameStream(lambda give: self._framed(request, give))
        if method == "GET" and path.startswith("datasets"):
            return answer(await trio.to_thread.run_sync(self._shown, path.removeprefix("datasets").strip("/")))
        raise NotFound("there is no such question here", rule="question", hint="docs/http.md tells which are")

    async def _framed(self, request: wire.QueryRequest, give: SendFrame) -> None:
        try:
            with sole_faults():
                await self._answers.answer(request, give, {}, ALL_ROWS)
        except Fault as fault:
            raise self._told(fault, "query") from None

    def _shown(self, ref: str) -> object:
        if not ref:
            return [_dataset(name, state) for name, state in self._answers.states()]
        return _dataset(ref, self._answers.state(ref))

    async def _body(self, receive: Receive, reply: _Reply) -> bytes | None:
        """``None``: it was refused."""
        body = await taken(receive, requests.MAX_BODY)
        if isinstance(body, bytes):
            return body
        why = f"a request has at most {requests.MAX_BODY} bytes" if body == 413 else "the request did not come in time"
        await reply.whole(body, {"message": why}, {"connection": "close"})
        return None

    async def _query(self, question: requests.SqlQuestion, reply: _Reply) -> None:
        if "Proof" in question.include:
            raise Refused(
                "this node does not prove answers yet", rule=UNPROVEN,
                hint="include=input tells what an answer was made of, and gives the same rows again",
            )  # fmt: skip

        def after(head: wire.QueryHead, members: dict[str, Any]) -> bytes:
            said = {"input": question.said(head.pins)} if "Input" in question.include else {}
            return b"," + _encode(members)[1:] + b"," + _encode(said | {"odfd": head})[1:]

        rows = _Rows(reply, b'{"output":{"data":', question.schema_format, after)
        await self._ask(question.request(), rows, question.bound(), question.rows())

    async def _tail(self, ref: str, wanted: requests.Tail, reply: _Reply) -> None:
        state = await trio.to_thread.run_sync(self._answers.state, ref)
        if state.schema is None:
            nothing: dict[str, Any] = {"data": {} if wanted.data_format == "JsonSoA" else []}
            return await reply.whole(200, nothing | _members(wanted.data_format, wanted.schema_format, pa.schema([])))

        def after(head: wire.QueryHead, members: dict[str, Any]) -> bytes:
            return b"," + _encode(members | {"odfd": head})[1:]

        rows = _Rows(reply, b'{"data":', wanted.schema_format, after)
        request = wire.QueryRequest(sql=tail_statement(state, wanted.skip, wanted.limit))
        return await self._ask(request, rows, {}, RowSelection(layout=requests.layout(wanted.data_format)))

    async def _ask(
        self, request: wire.QueryRequest, rows: _Rows, bound: Mapping[str, Bound], wanted: RowSelection
    ) -> None:
        rows.layout = wanted.layout or ""
        await self._answers.answer(request, rows.take, bound, wanted)
        await rows.end()

    async def _metadata(self, ref: str, wanted: tuple[frozenset[str], str], reply: _Reply) -> None:
        parts, form = wanted
        state = await trio.to_thread.run_sync(self._answers.state, ref)
        await reply.whole(200, {"output": described(state, parts, form)})

    async def _verify(self, body: bytes | None, reply: _Reply) -> None:
        if body is None:
            return None
        wrong = commitments.fault_of(commitments.verification_of(body))
        if wrong is not None:
            return await reply.whole(400, {"ok": False, "error": wrong})
        raise Refused(
            "the commitment is sound, and whether its answer is right cannot be said: this node does not run proven"
            " queries again yet",
            rule=UNPROVEN, hint="POST its input to /query, and compare",
        )  # fmt: skip

    def _told(self, fault: Fault, path: str) -> Fault:
        """What a visitor is told."""
        if isinstance(fault, Environment):
            self._logger.error("a question cannot be answered", path=path[:300], fault=str(fault), rule=fault.rule)
        return told_to_others(fault)


class _Reply:
    """What goes back, once."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.begun = True
        told = {"content-type": _JSON, "cache-control": "no-cache", **headers}
        raw = [(name.encode(), value.encode()) for name, value in told.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def more(self, data: bytes, *, last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def whole(self, status: int, value: object, headers: Mapping[str, str] | None = None) -> None:
        body = _encode(value)
        await self.begin(status, {"content-length": str(len(body)), **(headers or {})})
        await self.more(body, last=True)

    async def refuse(self, fault: Fault) -> None:
        """Nothing where rows have left: the connection ends in the middle, and who reads sees that."""
        if self.begun:
            return
        status = 501 if fault.rule in _NOT_DONE else 503 if fault.rule == BUSY else http_status(fault)
        told = {"message": fault.message, "rule": fault.rule, "hint": fault.hint, "place": fault.place}
        also = {"retry-after": "5"} if status == 503 else {}
        said = {name: text for name, text in told.items() if text}
        await self.whole(400 if status == 422 else status, said, also)


class _Rows:
    """Frames of an answer, as the JSON around them."""

    def __init__(
        self, reply: _Reply, before: bytes, form: str | None, after: Callable[[wire.QueryHead, dict[str, Any]], bytes]
    ) -> None:
        self._reply, self._before, self._form, self._after = reply, before, form, after
        self.layout = ""
        self._head: wire.QueryHead | None = None
        self._members: dict[str, Any] = {}

    async def take(self, frame: bytes) -> None:
        """Raises Invalid for a schema that has no words in its format."""
        kind, content = parted(frame)
        if kind == HEAD:
            self._head = msgspec.json.decode(content, type=wire.QueryHead)
        elif kind == SCHEMA:
            self._members = _members(self.layout, self._form, pa.ipc.read_schema(pa.py_buffer(content)))
        elif kind == ROWS:
            if not self._reply.begun:
                await self._reply.begin(200, {})
                await self._reply.more(self._before)
            await self._reply.more(content)

    async def end(self) -> None:
        assert self._head is not None
        await self._reply.more(self._after(self._head, self._members), last=True)


def tail_statement(state: ChainState, skip: int, limit: int) -> str:
    """The last rows but ``skip``, in the order of their offsets, which have no gaps."""
    offset = '"' + state.vocab.offset.replace('"', '""') + '"'
    end = max(0, state.next_offset - skip)
    return (
        f'SELECT * FROM "{state.dataset}" WHERE {offset} >= {max(0, end - limit)} AND {offset} < {end}'
        f" ORDER BY {offset}"
    )


def described(state: ChainState, parts: frozenset[str], form: str) -> dict[str, Any]:
    """What of a dataset's metadata is asked for. Raises Invalid for a schema that has no words in its format."""
    events = {"Attachments": state.set_attachments, "Info": state.set_info, "License": state.set_license}
    told: dict[str, Any] = {
        name.lower(): _event(event) for name, event in events.items() if name in parts and event is not None
    }
    if "Refs" in parts:
        told["refs"] = [{"name": "head", "blockHash": str(state.head)}]
    if "Schema" in parts and state.schema is not None:
        told |= {"schema": schemas.of_dataset(schema_of(state.schema), form), "schemaFormat": form}
    if "Seed" in parts and state.kind is not None:
        told["seed"] = {"datasetId": str(state.dataset), "datasetKind": state.kind.value}
    if "Vocab" in parts:
        vocab = state.vocab
        told["vocab"] = {
            "offsetColumn": vocab.offset,
            "operationTypeColumn": vocab.operation_type,
            "systemTimeColumn": vocab.system_time,
            "eventTimeColumn": vocab.event_time,
        }
    return told


def _dataset(name: str, state: ChainState) -> dict[str, Any]:
    """A dataset, as far as it is served, with the fields that the control API has for it."""
    return {
        "name": name,
        "id": str(state.dataset),
        "kind": state.kind.value if state.kind is not None else "",
        "blocks": state.size,
        "records": state.next_offset,
        "watermark": None if state.watermark is None else instant.render(state.watermark),
        "head": str(state.head),
    }


def _event(event: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in to_builtins(event).items() if name != "kind"}


def _members(layout: str, form: str | None, schema: pa.Schema) -> dict[str, Any]:
    """Beside the rows."""
    told: dict[str, Any] = {"dataFormat": layout}
    return told if form is None else told | {"schema": schemas.FORMATS[form](schema), "schemaFormat": form}
