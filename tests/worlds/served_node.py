"""A node of this process behind a control socket, for clients that run in threads or in processes of their own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import trio

from odfd.control.endpoint import ControlServer, Gate, bind, release
from odfd.runtime.supervision import Life

_T = TypeVar("_T")


@asynccontextmanager
async def served(alice: Any, folder: Path) -> AsyncIterator[Path]:
    """Its API on a socket, with connections that are cut when it stops."""
    path = folder / "s"
    listener = bind(path)
    server = ControlServer(listener, alice.assembly.api, Gate(os.getuid()), alice.logger)
    life = Life()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run, life)
            yield path
            nursery.cancel_scope.cancel()
    finally:
        release(listener, path)


async def away(work: Callable[[], _T]) -> _T:
    """In a thread, as a program of another process would; here it would wait for a node that it stops."""
    return await trio.to_thread.run_sync(work)
