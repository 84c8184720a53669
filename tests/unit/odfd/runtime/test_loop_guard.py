"""A loop that is held is told of from beside it, with the place; one that never lets go is ended."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio

from odfd.runtime.loop_guard import END, HELD, LOOK, BlockageDetector, LoopGuard


class Log:
    """Lines, and an event for each kind of them."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.came = {"event loop held": threading.Event(), "event loop released": threading.Event()}

    def error(self, event: str, **more: Any) -> None:
        self.lines.append((event, more))
        if event in self.came:
            self.came[event].set()


def hold_until(event: threading.Event) -> None:
    """A handler that waits for something and lets nobody else have the loop."""
    assert event.wait(60)


@pytest.mark.slow
async def test_who_holds_the_loop_is_named_while_it_does() -> None:
    log: Any = Log()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(LoopGuard(log).run)
        await trio.sleep(LOOK)
        hold_until(log.came["event loop held"])
        await trio.to_thread.run_sync(hold_until, log.came["event loop released"])
        nursery.cancel_scope.cancel()
    (held, told), (released, _) = log.lines
    assert (held, released) == ("event loop held", "event loop released")
    assert "hold_until (test_loop_guard.py:" in told["where"]


@pytest.mark.slow
async def test_a_loop_that_never_lets_go_is_ended() -> None:
    log, ended = Log(), threading.Event()
    guarded: Any = log
    async with trio.open_nursery() as nursery:
        nursery.start_soon(LoopGuard(guarded, BlockageDetector(held=LOOK, end=3 * LOOK), ended.set).run)
        await trio.sleep(LOOK)
        hold_until(ended)
        nursery.cancel_scope.cancel()
    assert log.lines[-1][0] == "event loop held for too long: the daemon ends"


def test_looks_count_and_no_clock() -> None:
    """Between two looks a machine may have slept for a night."""
    holds, said = BlockageDetector(), []
    for look in range(int(300 / LOOK)):
        what, seconds = holds.look(1)
        if what:
            said.append((what, seconds, look))
        if what == "end":
            break
    assert said == [("held", HELD, HELD / LOOK), ("end", END, END / LOOK)], "within five minutes"
    assert holds.look(2) == ("released", END)
    assert holds.look(3)[0] == ""


@pytest.mark.slow
async def test_at_rest_nobody_is_woken_and_the_next_block_is_seen_all_the_same() -> None:
    """Beside a loop that waits, the guard waits too, without a timeout."""
    log: Any = Log()
    guard = LoopGuard(log)
    parked = threading.Event()
    park = guard._wake.wait

    def waits(seconds: float | None = None) -> bool:
        if seconds is None:
            parked.set()
        return park(seconds)

    guard._wake.wait = waits  # type: ignore[method-assign]
    rest, wake = trio.Event(), trio.lowlevel.current_trio_token()
    threading.Thread(target=lambda: (parked.wait(60), wake.run_sync_soon(rest.set))).start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.run)
        await rest.wait()
        hold_until(log.came["event loop held"])
        nursery.cancel_scope.cancel()
    assert [what for what, _ in log.lines][:1] == ["event loop held"]
