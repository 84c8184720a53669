"""Opens conversations of the smart protocol with a node,
and tells a node that does not speak it from one that refuses."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from chain.errors import Refused, Remote
from odfd.runtime.websocket import WebSocket
from p2p.web.transfer import NotSwitched, WebTransfers

_NOT_SPOKEN: Final = (400, 404, 405, 426, 500, 501)
"""Statuses of servers that have no such path, or no web sockets there."""


class NotOffered(Remote):
    """The other side does not speak the smart protocol, or not for this dataset."""


class Conversation(NamedTuple):
    """An open web socket, and whether its server is in a private network."""

    socket: WebSocket
    is_inside: bool


@asynccontextmanager
async def conversation(web: WebTransfers, url: str, headers: Mapping[str, str]) -> AsyncIterator[Conversation]:
    """Yields an open web socket at ``url``, which ends with the block. Raises NotOffered, Refused, Remote."""
    key = base64.b64encode(os.urandom(16)).decode()
    asked = {
        **headers, "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Version": "13",
    }  # fmt: skip
    try:
        async with web.upgrade(url, asked) as stream:
            yield Conversation(WebSocket(stream, is_client=True), stream.is_inside)
    except NotSwitched as fault:
        raise _to_refusal(fault, url) from None


def _to_refusal(fault: NotSwitched, url: str) -> Remote | Refused:
    said = problem_in(fault.body).text
    told = f": {said}" if said else ""
    if fault.status in (401, 403):
        hint = "a token of an account there, in a SecretSet: odfctl repo add NAME URL --credentials SECRETSET"
        return Refused(f"{url} refuses this node ({fault.status}{told})", rule="smart-refused", hint=hint)
    text = f"{url} does not speak the smart transfer protocol ({fault.status}{told})"
    if fault.status in _NOT_SPOKEN:
        return NotOffered(text, rule="smart-not-offered", hint="leave odf+ out of the URL to read it as a site")
    return Remote(f"{url} answers with status {fault.status}{told}", rule="smart-failed", hint="try again later")


class Refusal(NamedTuple):
    """The refusal of a server; empty texts if it cannot be read."""

    text: str
    rule: str


def problem_in(body: bytes) -> Refusal:
    """Reads the text and the rule of a server's refusal."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    said = found if isinstance(found, dict) else {}
    words = (said.get("message") or said.get("detail") or "", said.get("rule") or "")
    return Refusal(*("".join(each if each.isprintable() else " " for each in str(text))[:300] for text in words))
