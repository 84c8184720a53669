"""A visitor of the site pays for what it asks before it is made, and one address leaves others their share."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from odfd.runtime.http import Message, Receive, Send
from odfd.site.server import PAID_WITHIN, SHARES, SiteServer
from p2p.budget.work import SITE_ANSWER, SITE_PACK


async def asked(server: SiteServer, visitor: str, path: str, method: str = "HEAD") -> int:
    told: list[Any] = []

    async def send(message: Message) -> None:
        told.append(message)

    async def receive() -> Message:
        raise AssertionError("nobody has a body")

    await server._paid_by(visitor)({"method": method, "path": path}, receive, send)
    return int(told[0]["status"])


@pytest.mark.slow
@pytest.mark.parametrize(("path", "cost"), [("/x/packs/0", SITE_PACK), ("/x/refs/head", SITE_ANSWER)])
async def test_a_head_that_makes_a_pack_is_paid_for_before(autojump_clock: Any, path: str, cost: float) -> None:
    made = 0

    async def application(_scope: Message, _receive: Receive, send: Send) -> None:
        nonlocal made
        made += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})

    server = SiteServer([], application, None)  # type: ignore[arg-type]  # it listens nowhere
    refused = 0

    async def visit(number: int) -> None:
        nonlocal refused
        status = await asked(server, "203.0.113.7", path)
        refused += status == 503

    allowed = (SHARES.host.burst + PAID_WITHIN * SHARES.host.per_second) / cost
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(int(2 * allowed)):
            nursery.start_soon(visit, number)
    assert made == pytest.approx(allowed, abs=2)
    assert refused == pytest.approx(allowed, abs=2)
    assert trio.current_time() - begun <= PAID_WITHIN
    assert await asked(server, "198.51.100.1", path) == 200, "another address has its own share"
    assert await asked(server, "127.0.0.1", path) == 200, "its owner, or a proxy"
