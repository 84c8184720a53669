"""Asks the API of a node in this process, as its owner."""

from __future__ import annotations

import json
from typing import Any

import structlog
import trio

from odfd.api.routes import application


async def ask(
    node: Any, method: str, path: str, query: str = "", until: bytes = b"", body: object = b"", **headers: str
) -> tuple[int, list[Any]]:
    """Returns the status and the JSON values of the answer; of a stream, those up to the one with ``until``.

    ``body``: a text of YAML, or what is sent as JSON. ``headers``: of the request, ``if_match`` for ``If-Match``.
    """
    status, values, _ = await ask_whole(node, method, path, query, until, body, **headers)
    return status, values


async def ask_whole(
    node: Any, method: str, path: str, query: str = "", until: bytes = b"", body: object = b"", **headers: str
) -> tuple[int, list[Any], dict[str, str]]:
    """Returns the headers of the answer too."""
    sent = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    data, status, enough, told = bytearray(), 0, trio.CancelScope(), {}
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http", "method": method, "path": path, "query_string": query.encode(), "root_path": "",
        "headers": given + ([(b"content-type", b"application/yaml")] if isinstance(body, str) else []),
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": sent, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        told.update({name.decode(): value.decode() for name, value in message.get("headers", ())})
        data.extend(message.get("body", b""))
        if until and until in data:
            enough.cancel()

    with enough:
        await application(node.services, structlog.get_logger())(scope, receive, send)  # type: ignore[arg-type]
    return status, [json.loads(line) for line in data.splitlines()], told
