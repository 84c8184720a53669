"""Runs blocking calls in worker threads, also those that may hang, such as ones that ask a server or a network disk.

A part that others give functions to, such as a loop of rounds or the task board, calls them by ``invoke``: they are
plain where they only read and write, and async where they wait for something.

Other work in threads is never abandoned: its loops call ``end_if_unwanted``, so that it ends where it is at rest.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial, wraps
from typing import Final, ParamSpec, TypeVar, cast

import trio

P = ParamSpec("P")
T = TypeVar("T")
_NO_MORE: Final = object()


async def invoke(call: Callable[P, T | Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls a function of another part: awaits an async one, and runs a plain one in a worker thread, to its end."""
    if inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__):
        return await cast(Awaitable[T], call(*args, **kwargs))
    return cast(T, await trio.to_thread.run_sync(partial(call, *args, **kwargs)))


class Stepped(AsyncIterator[T]):
    """Yields what an iterator that blocks yields, each value from a worker thread."""

    def __init__(self, values: Iterator[T]) -> None:
        self._values = values

    async def __anext__(self) -> T:
        found = await trio.to_thread.run_sync(next, self._values, _NO_MORE)
        if found is _NO_MORE:
            raise StopAsyncIteration
        return cast(T, found)


def in_loop(call: Callable[P, T]) -> Callable[P, T]:
    """Lets worker threads call a function that has to run in the event loop; it does not wait for anything.

    For what operations that block tell the rest of the node: events, tasks, wake-ups.
    """

    @wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        has_begun = False

        def perform() -> T:
            nonlocal has_begun
            has_begun = True
            return call(*args, **kwargs)

        if not _is_in_loop():
            try:
                return trio.from_thread.run_sync(perform)
            except RuntimeError:
                if has_begun:
                    raise
                # A thread that trio did not start: a test, or a command, of which nothing runs in a loop.
        return perform()

    return run


def _is_in_loop() -> bool:
    try:
        trio.lowlevel.current_trio_token()
    except RuntimeError:
        return False
    return True


async def run_abandonable(call: Callable[[], T]) -> T:
    """Runs a call in a worker thread. If the wait is cancelled the thread goes on alone, and its result is dropped."""
    return await trio.to_thread.run_sync(call, abandon_on_cancel=True)  # type: ignore[call-arg]  # newer than its stubs


def end_if_unwanted() -> None:
    """Ends work of a worker thread whose task was cancelled, for example because its client has left.

    Called in loops over slices and blocks that read for one request. Raises trio.Cancelled; does nothing in threads
    that trio did not start, whose callers wait for them.
    """
    with suppress(RuntimeError):
        trio.from_thread.check_cancelled()
