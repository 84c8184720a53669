"""Blocking functions that are awaited."""

from __future__ import annotations

import threading

import pytest
import trio

from odfd.runtime.hanging_calls import in_loop, in_worker


class Shop:
    """Has one operation that blocks."""

    @in_worker
    def open(self, name: str, *, times: int = 1) -> tuple[str, int]:
        """Says where it runs."""
        if not times:
            raise ValueError(name)
        return name * times, threading.get_ident()


async def test_a_blocking_operation_is_awaited_and_runs_beside_the_event_loop() -> None:
    name, thread = await Shop().open("a", times=3)
    assert name == "aaa"
    assert thread != threading.get_ident()
    with pytest.raises(ValueError, match="a"):
        await Shop().open("a", times=0)


async def test_it_keeps_its_name_its_text_and_its_types_for_what_reads_them() -> None:
    assert (Shop.open.__qualname__, Shop.open.__doc__) == ("Shop.open", "Says where it runs.")
    assert Shop.open.__annotations__["return"] == "tuple[str, int]"


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
