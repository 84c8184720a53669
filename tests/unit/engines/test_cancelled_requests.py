"""A request whose caller has gone ends soon, or costs the engine its process; times are virtual."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from engines.contract import EngineIdentity, SessionState
from engines.errors import EngineLost, LimitExceeded
from engines.provision.processes import EngineProcess
from engines.provision.settings import WarmSettings, WarmthLimits
from engines.sandbox.base import PlainProcess

LIMITS = WarmthLimits(cancelled=10, pulse=5)
SETTINGS = WarmSettings(
    name="fake",
    program=lambda listen, scratch: ("true",),
    sandbox=PlainProcess(),
    identity=EngineIdentity(name="fake", version="1", digest="", sandbox="", platform=""),
    scratch=Path("unused"),
    limits=LIMITS,
)


class Client:
    """An engine that answers ``session`` by the time since its start."""

    def __init__(self, answer: Callable[[float], Any]) -> None:
        self.answer, self.began, self.asked = answer, trio.current_time(), 0

    async def session(self, *, starts: bool) -> SessionState:
        assert not starts
        self.asked += 1
        found = self.answer(trio.current_time() - self.began)
        if found is None:
            await trio.sleep_forever()
        if isinstance(found, Exception):
            raise found
        return SessionState(state="ready", lingering=round(1000 * found))


def full_until(end: float, then: float) -> Callable[[float], Any]:
    return lambda now: LimitExceeded("full", rule="engine-limit") if now < end else then


CASES: dict[str, tuple[Callable[[float], Any], float | None]] = {
    "it ended": (lambda now: 0, None),
    "it works on": (lambda now: now, 10),
    "it ended, and a later one works on": (lambda now: now - 6, 16),
    "it ends late": (lambda now: 4 if now < 15 else 0, None),
    "nothing is answered": (lambda now: None, 15),
    "too many calls are in flight to ask": (full_until(25, 30), 30),
    "the process is gone": (lambda now: EngineLost("gone"), None),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_request_that_goes_on_without_its_caller_costs_its_process(
    case: str, autojump_clock: trio.testing.MockClock
) -> None:
    answer, expected = CASES[case]
    client: Any = Client(answer)
    process = EngineProcess(SETTINGS, Path("unused"), lambda name, facts: None)
    left: float | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process._leave_when_stuck, client)
        await trio.sleep(100)
        assert not client.asked, "nobody was cancelled"
        client.began = trio.current_time()
        process.note_cancelled()
        while left is None and trio.current_time() < client.began + 60:
            await trio.sleep(0.5)
            left = trio.current_time() - client.began if process.is_leaving else None
        nursery.cancel_scope.cancel()
    assert client.asked
    assert left is None if expected is None else left == pytest.approx(expected, abs=0.5)
    assert process.left == ("" if expected is None else "a cancelled request did not end")


@pytest.mark.parametrize(
    "said,lack",
    [
        ("terminate called after throwing an instance of 'std::bad_alloc'", "std::bad_alloc"),
        ("java.lang.OutOfMemoryError: Java heap space", "java.lang.OutOfMemoryError: Java heap space"),
        ("pyarrow.lib.ArrowMemoryError: malloc of size 629145600 failed", "MemoryError"),
        ("WARNING: Using incubator modules", ""),
    ],
)
async def test_a_lack_of_memory_is_told_by_its_name(said: str, lack: str) -> None:
    process = EngineProcess(SETTINGS, Path("unused"), lambda name, facts: None)
    process.note(said)
    process.note("and more")
    assert process.lack == lack
