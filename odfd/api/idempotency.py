"""Answers a repeated POST with the same ``Idempotency-Key`` as the first time, and refuses a key of another request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import trio
from starlette.requests import Request
from starlette.responses import Response

from chain.errors import Fault
from odfd.access.tokens import TokenGrant
from odfd.control.endpoint import ACT_AS, CALLER, GRANT, Caller
from odfd.control.responses import problem, whole_body
from odfd.errors import Usage
from odfd.runtime.http import Message
from odfd.store.idempotency import HEADER, AnswerStore, KeptAnswer

Respond: TypeAlias = Callable[[Request], Awaitable[Response]]
REPLAYED: Final = "idempotency-replayed"
"""The header of an answer that is repeated."""
GRACE: Final = 10.0
"""Seconds that a request has to finish after its client went away, or the node was told to stop."""
WITHOUT: Final = frozenset({
    "/node/v1alpha1/uploads", "/node/v1alpha1/query", "/node/v1alpha1/slices", "/node/v1alpha1/page",
    "/node/v1alpha1/invitations", "/net/v1alpha1/networks/{name}/invitations", "/auth/v1alpha1/tokens",
    "/dataset/v1alpha1/datasets/{ref}/authority/key",
})  # fmt: skip
"""Paths of POSTs without keys: the body or answer is a stream, or the answer is secret to its receiver."""


def once(respond: Respond, path: str, answers_of: Callable[[Request], AnswerStore | None]) -> Respond:
    """Wraps the endpoint of a POST. ``answers_of`` returns the store of answers, or ``None``."""

    async def endpoint(request: Request) -> Response:
        key = request.headers.get(HEADER)
        if key is None:
            return await respond(request)
        answers = answers_of(request)
        try:
            if answers is None or path in WITHOUT:
                raise Usage(
                    f"{request.url.path} takes no {HEADER}", rule="idempotency-key", hint="send it without the header"
                )
            return await _answer(respond, request, key, answers)
        except Fault as fault:
            return problem(fault)

    return endpoint


async def _answer(respond: Respond, request: Request, key: str, answers: AnswerStore) -> Response:
    data = await whole_body(request)
    sent = f"{_asker(request)}{request.url.path}?{request.url.query}\n".encode() + data
    kept = await trio.to_thread.run_sync(answers.claim, key, sent)
    if kept is not None:
        return Response(kept.body, kept.status, {REPLAYED: "true"}, kept.media_type)

    async def receive() -> Message:
        return {"type": "http.request", "body": data, "more_body": False}

    async def act() -> Response:
        response = await respond(Request(request.scope, receive))
        await trio.to_thread.run_sync(_record, answers, key, sent, response)
        return response

    try:
        return await _to_its_end(act)
    finally:
        # Changes nothing after an answer was kept; else the effect is not known, and the key stays claimed.
        answers.abandon(key, sent)


def _asker(request: Request) -> str:
    """Returns a text that identifies the caller, so that nobody gets the answer of another."""
    grant: TokenGrant | None = request.scope.get(GRANT)
    if grant is not None:
        return f"token {grant.id}\n"
    caller: Caller | None = request.scope.get(CALLER)
    return "" if caller is None else f"{caller.uid} {request.headers.get(ACT_AS, '')}\n"


async def _to_its_end(act: Callable[[], Awaitable[Response]]) -> Response:
    """Continues for ``GRACE`` seconds after a cancellation: a client that went away will ask for the answer again."""
    scope = trio.CancelScope(shield=True)

    async def bound() -> None:
        try:
            await trio.sleep_forever()
        finally:
            scope.deadline = trio.current_time() + GRACE

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bound)
        with scope:
            response = await act()
        await trio.lowlevel.checkpoint_if_cancelled()
        nursery.cancel_scope.cancel()
    return response


def _record(answers: AnswerStore, key: str, sent: bytes, response: Response) -> None:
    # Also one of 500 and above: it may have come after a part of the effect, which a second run would do twice (the
    # IETF's draft-ietf-httpapi-idempotency-key-header answers a repeated request with the first "success or an error").
    kept = KeptAnswer(status=response.status_code, media_type=response.media_type or "", body=bytes(response.body))
    answers.settle(key, sent, kept)
