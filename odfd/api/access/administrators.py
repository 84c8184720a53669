"""Gives administrators every operation, and ends a stream once its caller is no longer an administrator."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing
from typing import Any, cast

import trio

from chain.errors import Refused
from odfd.api.access.guard import OWNER_ONLY, Guard


def of_administrator(guard: Guard, operation: Any) -> Any:
    """Returns the operation; a stream that it returns ends when the caller loses the rights of an administrator."""

    def call(*args: Any, **more: Any) -> Any:
        value = operation(*args, **more)
        if isinstance(value, AsyncIterator):
            return _while_same(guard, value)
        return _awaited(guard, value) if isinstance(value, Awaitable) else value

    return call if callable(operation) else operation


async def _awaited(guard: Guard, value: Awaitable[Any]) -> Any:
    found = await value
    return _while_same(guard, found) if isinstance(found, AsyncIterator) else found


async def _while_same(guard: Guard, values: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
    async with aclosing(cast("AsyncGenerator[Any, None]", values)) as opened:
        async for each in opened:
            if not await trio.to_thread.run_sync(guard.is_same_caller):
                text = f"{guard.subject.name} has no longer every right"
                raise Refused(text, rule=OWNER_ONLY, hint="ask anew, for what the account may read")
            yield each
