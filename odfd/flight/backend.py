"""Answers requests of the Flight SQL process: queries, and the list of datasets. An ASGI application.

The process forwards the token of its client: with a known token it has the owner's read access, without one anybody's.
"""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec
import trio
from starlette.requests import Request

from chain.codec.arrow_schema import schema_of
from chain.data.arrow_schema import to_arrow
from chain.errors import Environment, Fault, NotFound
from chain.state import ChainState
from engines.query.requests import RowSelection
from odfd.control import wire
from odfd.control.responses import FrameStream, answer, body, problem
from odfd.control.tokens import Tokens
from odfd.errors import sole_faults, told_to_others
from odfd.queries.doors import GiveFiles, ReaderAnswers, SendFrame
from odfd.queries.log_columns import fold_of
from odfd.runtime.http import Message, Receive, Send
from odfd.runtime.supervision import Logger

_UNBOUND: Final = RowSelection(limit=0, unbound=True)
_ALL: Final = RowSelection()


class FlightRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of the Flight SQL process to the node."""

    token: str
    request: wire.QueryRequest | None = None
    unbound: bool = False
    piped: bool = False
    """Whether rows are read from a pipe, whose descriptor is sent with the first frame."""


class FlightDataset(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset as the Flight SQL process lists it; ``schema``: an Arrow schema in base64."""

    name: str
    schema: str
    offset: str
    key: tuple[str, ...] = ()
    id: str
    kind: str
    blocks: int
    records: int
    head: str


class FlightBackend:
    """The ASGI application that answers the Flight SQL process."""

    def __init__(self, answering: ReaderAnswers, tokens: Tokens, logger: Logger) -> None:
        self._answering, self._tokens, self._logger = answering, tokens, logger

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        owner = False
        try:
            with sole_faults():
                asked = await body(Request(scope, receive), FlightRequest)
                owner = await trio.to_thread.run_sync(self._tokens.admits, asked.token)
                response: Any = await self._respond(scope["path"], asked, owner=owner)
                await response(scope, receive, send)
        except Fault as fault:
            await problem(fault if owner else self._public_fault(fault))(scope, receive, send)

    async def _respond(self, path: str, asked: FlightRequest, *, owner: bool) -> Any:
        if path == "/datasets":
            return answer(await trio.to_thread.run_sync(lambda: self._datasets(owner=owner)))
        if path != "/query" or asked.request is None:
            raise NotFound("unknown request", rule="flight-operation")
        wanted, rows = asked.request, _UNBOUND if asked.unbound else _ALL
        return FrameStream(lambda give: self._answer((wanted, rows), give, give if asked.piped else None, owner=owner))

    async def _answer(
        self, wanted: tuple[wire.QueryRequest, RowSelection], give: SendFrame, piped: GiveFiles | None, *, owner: bool
    ) -> None:
        request, rows = wanted
        try:
            with sole_faults():
                await self._answering.answer(request, give, rows, piped, owner=owner)
        except Fault as fault:
            if owner:
                raise
            raise self._public_fault(fault) from None

    def _public_fault(self, fault: Fault) -> Fault:
        if isinstance(fault, Environment):
            self._logger.error("a request cannot be answered", service="flight", fault=str(fault), rule=fault.rule)
        return told_to_others(fault)

    def _datasets(self, *, owner: bool) -> list[FlightDataset]:
        return [_flight_dataset(name, state) for name, state in self._answering.states(owner=owner)]


def _flight_dataset(name: str, state: ChainState) -> FlightDataset:
    schema = ""
    if state.schema is not None:
        try:
            columns = to_arrow(schema_of(state.schema)).remove_metadata()
        except Fault:
            pass  # the fault is reported when the dataset is read
        else:
            schema = base64.b64encode(columns.serialize().to_pybytes()).decode()
    fold, key = fold_of(state)
    return FlightDataset(
        name=name,
        schema=schema,
        offset=state.vocab.offset,
        key=key if fold == "key" else (),
        id=str(state.dataset),
        kind="" if state.kind is None else state.kind.value,
        blocks=state.size,
        records=state.next_offset,
        head=str(state.head),
    )
