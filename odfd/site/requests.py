"""Tells paths of questions from those of datasets, and reads a small body under a time limit."""

from __future__ import annotations

from typing import Final

import trio

from odfd.runtime.http import Receive

BODY_SECONDS: Final = 20.0
"""Seconds in which a whole request has to arrive."""


async def read_body(receive: Receive, most: int) -> bytes | int:
    """Returns the body of at most ``most`` bytes, or the HTTP status that refuses it."""
    body, more = bytearray(), True
    with trio.move_on_after(BODY_SECONDS) as patience:
        while more and len(body) <= most:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
    if patience.cancelled_caught or more or len(body) > most:
        return 408 if patience.cancelled_caught else 413
    return bytes(body)


TRANSFERS: Final = ("pull", "push")
"""Paths below a dataset of the web sockets of the smart transfer protocol."""
QUERY: Final = "/node/v1alpha1/query"
DATASETS: Final = "/dataset/v1alpha1/datasets"
"""Paths of our client's requests, the same as at the control socket; no file of a dataset has such a path."""


def is_own(path: str) -> bool:
    """Whether a path is a question of our client."""
    return path.rstrip("/") in (QUERY, DATASETS) or path.startswith(DATASETS + "/")


def is_question(path: str) -> bool:
    """Whether a path is a question, in kamu's format or in our client's."""
    if is_own(path):
        return True
    first, _, rest = path.strip("/").partition("/")
    return (first in ("query", "verify") and not rest) or first == "odata" or rest in ("tail", "metadata")


def is_transfer(path: str) -> bool:
    """Whether a path is a web socket of the smart transfer protocol."""
    return path.strip("/").partition("/")[2] in TRANSFERS
