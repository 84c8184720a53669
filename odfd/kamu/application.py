"""Answers ``/query``, ``/verify``, ``/NAME/tail`` and ``/NAME/metadata`` as kamu's nodes do; the site does the rest.

Field names, formats and statuses are those of kamu's OpenAPI. Rows are sent as they are computed; the member ``odfd``
after them says what the answer was made from. Parts that are not supported, such as OData, are refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import trio
from starlette.responses import Response

from chain import instant, libraries
from chain.codec.arrow_schema import schema_of
from chain.codec.manifest import to_builtins
from chain.errors import Environment, Fault, NotFound, Refused
from chain.libraries import pa
from chain.state import ChainState
from engines.query.requests import ALL_ROWS, RowSelection
from odfd.control import wire
from odfd.control.responses import FrameStream, answer, problem
from odfd.errors import sole_faults, told_to_others
from odfd.kamu import commitments, requests, schemas
from odfd.kamu.replies import JsonRows, Reply, Whole, encode, members_of
from odfd.queries.askers import Bound
from odfd.queries.doors import Door, DoorNeeds, PublicAnswers, SendFrame
from odfd.resources.registry import DATASET, OURS, STATE, VERSION
from odfd.runtime.http import Application, Message, Receive, Send
from odfd.runtime.supervision import Logger
from odfd.site.requests import DATASETS, QUERY, is_own, is_question, read_body
from odfd.site.server import caller_of


class KamuDoor(Door):
    """kamu's HTTP, at the addresses of the site."""

    def __init__(self, needs: DoorNeeds) -> None:
        self._needs = needs

    def wrap_site(self, site: Application) -> Application:
        return KamuApplication(self._needs.public, site, self._needs.logger)


class KamuApplication:
    """The ASGI application that answers questions in kamu's format. ``site`` serves all other requests."""

    def __init__(self, answers: PublicAnswers, site: Application, logger: Logger) -> None:
        self._answers, self._site, self._logger = answers, site, logger

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if not is_question(scope["path"]):
            return await self._site(scope, receive, send)
        if is_own(scope["path"]):
            return await self._own(scope, receive, send)
        reply = Reply(send)
        try:
            with sole_faults():
                await self._answer(scope, receive, reply)
        except Fault as fault:
            await reply.refuse(self._for_visitor(fault, scope["path"]))
        return None

    async def _answer(self, scope: Message, receive: Receive, reply: Reply) -> None:
        if not libraries.are_loaded():  # since schemas are written in the event loop
            await trio.to_thread.run_sync(libraries.load)
        method, path = scope["method"], scope["path"].strip("/")
        query = scope.get("query_string", b"").decode("latin-1")
        first, _, rest = path.partition("/")
        if first == "odata":
            raise Refused("OData is not spoken here", rule="odata", hint="GET /query answers in JSON; odfctl docs http")
        if method not in (("GET", "POST") if path == "query" else ("POST",) if path == "verify" else ("GET",)):
            await reply.whole(405, {"message": f"{method[:20]} is not understood at /{path[:300]}"})
        elif path == "verify":
            await self._verify(await self._body(receive, reply), reply, caller_of(scope))
        elif path == "query":
            question = requests.question_in(query) if method == "GET" else None
            if question is None and (body := await self._body(receive, reply)) is not None:
                question = requests.question_of(body)
            if question is not None:
                await self._query(question, reply, caller_of(scope))
        elif rest == "tail":
            await self._tail(first, requests.tail_in(query), reply, caller_of(scope))
        else:
            await self._metadata(first, requests.parts_in(query), reply)

    async def _own(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers our own client: with rows as frames of the control API, or with the served datasets."""
        path = scope["path"].rstrip("/")
        try:
            with sole_faults():
                response = await self._own_response(scope["method"], path, receive, caller_of(scope))
                await response(scope, receive, send)
        except Fault as fault:
            await problem(self._for_visitor(fault, scope["path"]))(scope, receive, send)

    async def _own_response(self, method: str, path: str, receive: Receive, caller: str) -> Response:
        if (method, path) == ("POST", QUERY):
            body = await read_body(receive, requests.MAX_BODY)
            request = requests.own_question_of(body if isinstance(body, bytes) else b"")
            return FrameStream(lambda give: self._read_frames(request, give, caller))
        if method == "GET" and path == DATASETS:
            return answer(await trio.to_thread.run_sync(self._all))
        ref, slash, operation = path.removeprefix(DATASETS + "/").partition("/")
        if method == "GET" and slash and operation == "detail" and path.startswith(DATASETS):
            return answer(await trio.to_thread.run_sync(self._detail, ref))
        raise NotFound("unknown path", rule="question", hint="odfctl docs http lists the paths")

    async def _read_frames(self, request: wire.QueryRequest, give: SendFrame, caller: str) -> None:
        try:
            with sole_faults():
                await self._answers.answer(request, give, {}, ALL_ROWS, caller=caller)
        except Fault as fault:
            raise self._for_visitor(fault, "query") from None

    def _all(self) -> object:
        return {"items": [_manifest(name, state) for name, state in self._answers.states()]}

    def _detail(self, ref: str) -> object:
        state = self._answers.state(ref)
        return {"dataset": {"name": ref, "id": str(state.dataset), **_state(state)}}

    async def _body(self, receive: Receive, reply: Reply) -> bytes | None:
        """Returns the body of a request; ``None`` if it was refused."""
        body = await read_body(receive, requests.MAX_BODY)
        if isinstance(body, bytes):
            return body
        why = f"a request has at most {requests.MAX_BODY} bytes" if body == 413 else "the request did not come in time"
        await reply.whole(body, {"message": why}, {"connection": "close"})
        return None

    async def _query(self, question: requests.SqlQuestion, reply: Reply, caller: str) -> None:
        if "Proof" in question.include:
            key = self._answers.key()
            output, head = await self._output(question, caller)
            added = await trio.to_thread.run_sync(commitments.committed, question.said(head.pins), output, key)
            return await reply.whole(200, {"output": output, **added, "odfd": head})

        def after(head: wire.QueryHead, members: dict[str, Any]) -> bytes:
            added = {"input": question.said(head.pins)} if "Input" in question.include else {}
            return b"," + encode(members)[1:] + b"," + encode(added | {"odfd": head})[1:]

        rows = JsonRows(reply, b'{"output":{"data":', question.schema_format, after)
        return await self._ask(question.request(), rows, question.bound(), question.rows(), caller)

    async def _output(self, question: requests.SqlQuestion, caller: str) -> tuple[Any, wire.QueryHead]:
        """Returns a whole output, which is the same whenever the query reads the same blocks. Raises Refused."""
        whole, heads = Whole(), []

        def after(head: wire.QueryHead, members: dict[str, Any]) -> bytes:
            heads.append(head)
            return b"," + encode(members)[1:]

        rows = JsonRows(whole, b'{"data":', question.schema_format, after)
        wanted = msgspec.structs.replace(question.rows(), prove=True)
        await self._ask(question.request(), rows, question.bound(), wanted, caller)
        return await trio.to_thread.run_sync(json.loads, bytes(whole.data)), heads[0]

    async def _tail(self, ref: str, wanted: requests.Tail, reply: Reply, caller: str) -> None:
        state = await trio.to_thread.run_sync(self._answers.state, ref)
        if state.schema is None:
            nothing: dict[str, Any] = {"data": {} if wanted.data_format == "JsonSoA" else []}
            return await reply.whole(200, nothing | members_of(wanted.data_format, wanted.schema_format, pa.schema([])))

        def after(head: wire.QueryHead, members: dict[str, Any]) -> bytes:
            return b"," + encode(members | {"odfd": head})[1:]

        rows = JsonRows(reply, b'{"data":', wanted.schema_format, after)
        request = wire.QueryRequest(sql=tail_statement(state, wanted.skip, wanted.limit))
        selection = RowSelection(layout=requests.layout(wanted.data_format))
        return await self._ask(request, rows, {}, selection, caller)

    async def _ask(
        self, request: wire.QueryRequest, rows: JsonRows, bound: Mapping[str, Bound], wanted: RowSelection, caller: str
    ) -> None:
        rows.layout = wanted.layout or ""
        await self._answers.answer(request, rows.take, bound, wanted, caller=caller)
        await rows.end()

    async def _metadata(self, ref: str, wanted: tuple[frozenset[str], str], reply: Reply) -> None:
        parts, form = wanted
        state = await trio.to_thread.run_sync(self._answers.state, ref)
        await reply.whole(200, {"output": described(state, parts, form)})

    async def _verify(self, body: bytes | None, reply: Reply, caller: str) -> None:
        if body is None:
            return None
        asked = commitments.verification_of(body)
        wrong = commitments.fault_of(asked)
        if wrong is None:
            question = requests.question_again(asked.input)
            wrong = await trio.to_thread.run_sync(self._lacking, question)
        if wrong is None:
            output, _ = await self._output(question, caller)
            wrong = await trio.to_thread.run_sync(commitments.mismatch, asked, output)
        told: dict[str, Any] = {"ok": True} if wrong is None else {"ok": False, "error": wrong}
        return await reply.whole(200 if wrong is None else 400, told)

    def _lacking(self, question: requests.SqlQuestion) -> dict[str, str] | None:
        for state, bound in zip(question.datasets or (), question.bound().values(), strict=True):
            if what := self._answers.lacks(bound):
                return commitments.not_here(state.id, state.block_hash if what == "block" else None)
        return None

    def _for_visitor(self, fault: Fault, path: str) -> Fault:
        """Returns the fault as a visitor may see it, and logs one of this machine."""
        if isinstance(fault, Environment):
            self._logger.error("a request cannot be answered", path=path[:300], fault=str(fault), rule=fault.rule)
        return told_to_others(fault)


def tail_statement(state: ChainState, skip: int, limit: int) -> str:
    """Builds a query for the last ``limit`` rows before the last ``skip``, by their offsets, which have no gaps."""
    offset = '"' + state.vocab.offset.replace('"', '""') + '"'
    end = max(0, state.next_offset - skip)
    return (
        f'SELECT * FROM "{state.dataset}" WHERE {offset} >= {max(0, end - limit)} AND {offset} < {end}'
        f" ORDER BY {offset}"
    )


def described(state: ChainState, parts: frozenset[str], form: str) -> dict[str, Any]:
    """Returns the requested metadata of a dataset. Raises Invalid for a schema that its format cannot express."""
    events = {"Attachments": state.set_attachments, "Info": state.set_info, "License": state.set_license}
    metadata: dict[str, Any] = {
        name.lower(): _event(event) for name, event in events.items() if name in parts and event is not None
    }
    if "Refs" in parts:
        metadata["refs"] = [{"name": "head", "blockHash": str(state.head)}]
    if "Schema" in parts and state.schema is not None:
        metadata |= {"schema": schemas.of_dataset(schema_of(state.schema), form), "schemaFormat": form}
    if "Seed" in parts and state.kind is not None:
        metadata["seed"] = {"datasetId": str(state.dataset), "datasetKind": state.kind.value}
    if "Vocab" in parts:
        vocab = state.vocab
        metadata["vocab"] = {
            "offsetColumn": vocab.offset,
            "operationTypeColumn": vocab.operation_type,
            "systemTimeColumn": vocab.system_time,
            "eventTimeColumn": vocab.event_time,
        }
    return metadata


def _manifest(name: str, state: ChainState) -> dict[str, Any]:
    """Describes the served part of a dataset in the shape of the control API."""
    conditions = {f"{OURS}/resource/{VERSION}/{STATE}": {"value": _state(state)}}
    return {
        "$schema": DATASET.uri,
        "headers": {"name": name},
        "spec": {"did": str(state.dataset)},
        "status": {"conditions": conditions},
    }


def _state(state: ChainState) -> dict[str, Any]:
    return {
        "kind": state.kind.value if state.kind is not None else "",
        "blocks": state.size,
        "records": state.next_offset,
        "watermark": None if state.watermark is None else instant.render(state.watermark),
        "head": str(state.head),
    }


def _event(event: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in to_builtins(event).items() if name != "kind"}
