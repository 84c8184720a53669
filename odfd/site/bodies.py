"""Takes a small request's body, whole and in time, or none."""

from __future__ import annotations

from typing import Final

import trio

from odfd.runtime.http import Receive

BODY_SECONDS: Final = 20.0
"""For a whole request."""


async def taken(receive: Receive, most: int) -> bytes | int:
    """The body, or the status that it is refused with."""
    body, more = bytearray(), True
    with trio.move_on_after(BODY_SECONDS) as patience:
        while more and len(body) <= most:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
    if patience.cancelled_caught or more or len(body) > most:
        return 408 if patience.cancelled_caught else 413
    return bytes(body)
