"""What a node signs leaves as fast as peers take it, and the last of it always does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock

from chain.ids import DatasetId
from chain.store.base import BlockDamaged
from odfd.network.outbox import Outbox
from odfd.runtime.supervision import Life
from odfd.trust.admission.statement_kinds import HEAD_PACE
from p2p.budget.buckets import Budget
from p2p.ports import PeerId, Topic

BUSY, QUIET = (DatasetId.from_public_key(bytes([number]) * 32) for number in (1, 2))


class Announced:
    """What was announced, and when."""

    def __init__(self) -> None:
        self.heads: list[tuple[float, bytes]] = []

    async def announce(self, topic: Topic, envelope: bytes) -> None:
        assert topic is Topic.HEADS
        self.heads.append((trio.current_time(), envelope))


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time would jump while one runs."""

    async def at_once(function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)


async def announced_of(heads: int, pause: float, also: bytes = b"") -> list[tuple[float, bytes]]:
    """So many heads of one dataset are signed, one after each pause, and one of another in the end."""
    network, logger, life = Announced(), Any, Life()
    outbox = Outbox(network, set, logger, lambda _: None)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run, life)
        await life.wait_ready()
        for number in range(heads):
            outbox.put_head(BUSY, b"%d" % number)
            await trio.sleep(pause)
        if also:
            outbox.put_head(QUIET, also)
        await trio.sleep(5)
        life.stopping.set()
    return network.heads


async def test_every_head_of_a_busy_publisher_that_leaves_is_taken(autojump_clock: MockClock) -> None:
    """Twenty a second: peers refused all but one a second, and the last with them, for two minutes."""
    announced = await announced_of(400, 0.05)
    taken = Budget[None](HEAD_PACE)
    assert all(taken.spend(None, at) for at, _ in announced)
    assert announced[-1][1] == b"399"
    assert 60 * 0.7 < len(announced) < 100


async def test_a_head_of_another_dataset_does_not_wait(autojump_clock: MockClock) -> None:
    announced = await announced_of(400, 0.01, also=b"quiet")
    assert [at for at, said in announced if said == b"quiet"] == [pytest.approx(4.0, abs=0.1)]


async def test_heads_that_are_signed_slowly_leave_at_once_and_all(autojump_clock: MockClock) -> None:
    announced = await announced_of(100, 2.0)
    assert [said for _, said in announced] == [b"%d" % number for number in range(100)]


async def test_a_damaged_chain_is_not_announced_and_others_are(autojump_clock: MockClock) -> None:
    def public_of(datasets: Iterable[DatasetId], _peer: PeerId | None = None) -> set[DatasetId]:
        if BUSY in datasets:
            raise BlockDamaged(BUSY, 4, "it is cut off")
        return set(datasets)

    network, life = Announced(), Life()
    with structlog.testing.capture_logs() as logs:
        outbox = Outbox(network, public_of, structlog.get_logger(), lambda _: None)  # type: ignore[arg-type]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run, life)
            await life.wait_ready()
            outbox.put_head(BUSY, b"damaged")
            await trio.sleep(2)
            outbox.put_head(QUIET, b"whole")
            await trio.sleep(2)
            life.stopping.set()
    assert [said for _, said in network.heads] == [b"whole"]
    assert [each["event"] for each in logs] == ["not announced"]
