"""Takes calls of webhooks at ``/hooks/NAME``: bodies that are signed for the Source NAME, from callers without a token.

The whole body must be read to check who signed it, so few are read at a time, and none is large.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from chain.errors import Invalid, Refused
from chain.wording import size
from odfd.control import wire
from odfd.runtime.http import Message, Receive, Send

PREFIX: Final = "/hooks/"
HOOK_RULE: Final = "webhook-signature"
MAX_BODY: Final = 1 << 20
AT_ONCE: Final = 16

SignedPush: TypeAlias = Callable[[str, Mapping[str, str], bytes], Awaitable[wire.PushReceipt]]
"""Accepts a signed push, like ``odfd.api.resources.endpoints.EndpointService.signed_push``."""


def is_hook(scope: Message) -> bool:
    """Whether a request is a call of a webhook without a token."""
    named = any(name == b"authorization" for name, _ in scope["headers"])
    return scope["method"] == "POST" and scope["path"].startswith(PREFIX) and not named


class HookApplication:
    """Reads calls, and passes them to ``push``, which knows the Sources and their secrets."""

    def __init__(self, push: SignedPush) -> None:
        self._push = push
        self._busy = 0

    async def answer(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers 201, or 202 for a push that a crash may still lose. Raises Fault."""
        if self._busy >= AT_ONCE:
            raise Refused(f"{AT_ONCE} calls are being read", rule="access-token-limit", hint="call again")
        self._busy += 1
        try:
            body = await _body(receive)
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
            receipt = await self._push(scope["path"].removeprefix(PREFIX), headers, body)
        finally:
            self._busy -= 1
        said = msgspec.json.encode(receipt)
        kind = [(b"content-type", b"application/json"), (b"content-length", str(len(said)).encode())]
        status = 201 if receipt.durable else 202
        await send({"type": "http.response.start", "status": status, "headers": kind})
        await send({"type": "http.response.body", "body": said})


async def _body(receive: Receive) -> bytes:
    """Reads the body. Raises Invalid for one that is too large, before more of it is read."""
    parts, total = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Invalid("the call ended before its body", rule="push-size", hint="call again")
        part = message.get("body", b"")
        total += len(part)
        if total > MAX_BODY:
            hint = "push what is larger with a token: POST /source/v1alpha1/sources/NAME/ingest"
            raise Invalid(f"a call of more than {size(MAX_BODY)}", rule="push-size", hint=hint)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)
