"""A mirror whose peers are behind asks again soon after news, and ever later without any."""

from __future__ import annotations

from typing import Any, cast

import trio
from trio.testing import MockClock

from chain.ids import DatasetId
from odfd.mirrors.mirror_spec import MirrorSpec
from odfd.mirrors.scheduler import AGAIN, MirrorScheduler
from odfd.mirrors.sync import NobodyHasIt

ID = DatasetId.from_public_key(b"d" * 32)


class Behind:
    """Peers that do not have what is signed yet; notes when they are asked."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def sync(self, *_: object) -> NobodyHasIt:
        self.asked.append(trio.current_time())
        return NobodyHasIt("no connected peer serves it that far")


async def test_news_ends_the_pauses_after_what_failed_before(autojump_clock: MockClock) -> None:
    """Each hop of a chain of mirrors was a minute behind the last head of a busy publisher."""
    behind = Behind()
    nothing = cast(Any, None)
    scheduler = MirrorScheduler(nothing, cast(Any, behind), nothing, nothing, nothing, print)
    async with trio.open_nursery() as nursery:
        scheduler._nursery = nursery
        scheduler._begin(MirrorSpec(dataset=str(ID), name="cities"))
        for _ in range(60):
            await trio.sleep(0.7)
            scheduler.poke(ID)
        last = trio.current_time()
        await trio.sleep(200)
        nursery.cancel_scope.cancel()
    pauses = [at - last for at in behind.asked if at > last]
    assert pauses[:3] == [AGAIN.whole(1), AGAIN.whole(1) + AGAIN.whole(2), sum(map(AGAIN.whole, (1, 2, 3)))]
    assert len(pauses) < 12
