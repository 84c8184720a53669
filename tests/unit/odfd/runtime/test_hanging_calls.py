"""Blocking functions that are awaited."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import trio

from odfd.runtime.hanging_calls import in_loop, invoke


class Shop:
    """Has one operation that blocks, and one that waits."""

    def open(self, name: str, *, times: int = 1) -> tuple[str, int]:
        """Says where it runs."""
        if not times:
            raise ValueError(name)
        return name * times, threading.get_ident()

    async def close(self, name: str) -> tuple[str, int]:
        await trio.lowlevel.checkpoint()
        return name, threading.get_ident()


async def test_a_plain_function_runs_beside_the_event_loop_and_an_async_one_in_it() -> None:
    shop, here = Shop(), threading.get_ident()
    name, thread = await invoke(shop.open, "a", times=3)
    assert name == "aaa"
    assert thread != here
    assert await invoke(shop.close, "b") == ("b", here)
    assert await invoke(partial(shop.close, "c")) == ("c", here)
    with pytest.raises(ValueError, match="a"):
        await invoke(shop.open, "a", times=0)


class Bell:
    """Rings in the event loop."""

    def __init__(self) -> None:
        self.rung: list[int] = []

    @in_loop
    def ring(self, note: int = 0) -> int:
        """Says where it rings; a bad note is its own fault."""
        if note < 0:
            raise RuntimeError("no such note")
        self.rung.append(threading.get_ident())
        return note


async def test_a_worker_calls_what_runs_in_the_loop() -> None:
    bell, here = Bell(), threading.get_ident()
    assert (bell.ring(1), await trio.to_thread.run_sync(bell.ring, 2)) == (1, 2)
    assert bell.rung == [here, here]
    with pytest.raises(RuntimeError, match="no such note"):
        await trio.to_thread.run_sync(bell.ring, -1)
    assert len(bell.rung) == 2, "not tried again"


def test_without_a_loop_it_is_called_as_it_is() -> None:
    assert Bell().ring(3) == 3
