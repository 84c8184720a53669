"""The time of a query: what is under way is sent whole, so that the client can read why the rows end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from engines.errors import LimitExceeded
from engines.query.frames import ROWS, frame
from engines.query.reader import QueryLimits
from odfd.control import wire
from odfd.services.queries.fair_turns import LAST_FRAME
from odfd.services.queries.service import QueryService

_SECONDS = 5.0
_ROWS = memoryview(frame(ROWS, b"rows"))


async def _answered(seconds_of_a_send: float) -> tuple[float, int]:
    """Sends rows without an end; returns when the query ended, and how many frames were sent whole."""
    processes: Any = SimpleNamespace(limits=QueryLimits(seconds=_SECONDS))
    service = QueryService(*([None, processes, None, None]))  # type: ignore[arg-type]
    head: Any = wire.QueryHead(pins=(), standing="data", standings=())
    sent: list[bytes] = []

    async def rows() -> AsyncGenerator[tuple[bytes, memoryview], None]:
        while True:
            await trio.lowlevel.checkpoint()
            yield ROWS, _ROWS

    async def send(data: bytes | memoryview) -> None:
        await trio.sleep(seconds_of_a_send)
        sent.append(bytes(data))

    async def signing(_kind: bytes, whole: memoryview) -> memoryview:
        return whole

    with pytest.raises(LimitExceeded, match="more than 5 s"):
        await service._pass_on(rows(), head, (send, send), signing, service._end)
    return trio.current_time(), len(sent)


@pytest.mark.parametrize(
    ("seconds", "end", "whole"),
    [(2.0, 6.0, 3), (4.0, 8.0, 2), (1000.0, _SECONDS + LAST_FRAME, 0)],
    ids=["often", "once", "a client that does not read"],
)
def test_a_frame_that_is_sent_is_sent_whole(seconds: float, end: float, whole: int) -> None:
    clock = MockClock(autojump_threshold=0)

    async def ended() -> tuple[float, int]:
        begun = trio.current_time()
        last, count = await _answered(seconds)
        return last - begun, count

    assert trio.run(ended, clock=clock) == (pytest.approx(end), whole)
