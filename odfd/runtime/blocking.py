"""Lets blocking functions be awaited."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import trio

P = ParamSpec("P")
T = TypeVar("T")


def in_thread(blocking: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Makes of a blocking function one that is awaited, and runs in a worker thread."""

    @wraps(blocking)
    async def call(*args: P.args, **more: P.kwargs) -> T:
        return await trio.to_thread.run_sync(partial(blocking, *args, **more))

    return call
