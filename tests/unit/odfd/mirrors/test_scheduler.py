"""A mirror whose peers are behind asks again soon after news, and ever later without any."""

from __future__ import annotations

from typing import Any, cast

import trio
from trio.testing import MockClock

from chain.ids import DatasetId
from odfd.mirrors.scheduler import AGAIN, NEWCOMERS_SECONDS, MirrorScheduler
from odfd.mirrors.sync import Current, NobodyHasIt
from odfd.store.mirror_specs import MirrorSpec

ID = DatasetId.from_public_key(b"d" * 32)
OTHER = DatasetId.from_public_key(b"o" * 32)


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
    scheduler = MirrorScheduler(nothing, cast(Any, behind), nothing, nothing, nothing, print, print, lambda: True)
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


class Whole(Behind):
    """Peers that have nothing newer."""

    async def sync(self, *_: object) -> Current:  # type: ignore[override]
        self.asked.append(trio.current_time())
        return Current(peers=1, connected=1)


async def test_strangers_that_come_and_go_make_nobody_ask_all_the_time(autojump_clock: MockClock) -> None:
    """Four a second, for a minute: a mirror that has all asks nobody for it, one that lacks something now and then."""
    for peers, most in ((Whole(), 2), (Behind(), 1 + 60 / NEWCOMERS_SECONDS)):
        nothing = cast(Any, None)
        scheduler = MirrorScheduler(nothing, cast(Any, peers), nothing, nothing, nothing, print, print, lambda: True)
        async with trio.open_nursery() as nursery:
            scheduler._nursery = nursery
            scheduler._begin(MirrorSpec(dataset=str(ID), name="cities"))
            await trio.sleep(0.5)
            before = len(peers.asked)
            scheduler.met_someone()
            await trio.testing.wait_all_tasks_blocked()
            assert len(peers.asked) - before == (0 if isinstance(peers, Whole) else 1), "the first newcomer is asked"
            for _ in range(240):
                await trio.sleep(0.25)
                scheduler.met_someone()
            assert len(peers.asked) - before <= most
            nursery.cancel_scope.cancel()


async def test_in_no_network_a_mirror_waits_for_news_alone(autojump_clock: MockClock) -> None:
    """An idle node has no wake-up for it; with the first network it is asked for, and then every minute."""
    for peers in (Whole(), Behind()):
        nothing, joined = cast(Any, None), [False]
        scheduler = MirrorScheduler(
            nothing, cast(Any, peers), nothing, nothing, nothing, print, print, lambda j=joined: j[0]
        )
        async with trio.open_nursery() as nursery:
            scheduler._nursery = nursery
            scheduler._begin(MirrorSpec(dataset=str(ID), name="cities"))
            scheduler._begin(MirrorSpec(dataset=str(OTHER), name="kept", via="https://example.org/odf"))
            await trio.sleep(10_000)
            assert [at for at in peers.asked if at > 9_000], "a place on the web is looked at all the same"
            assert scheduler.get(ID).passes == 1
            joined[0] = True
            scheduler.met_someone()
            await trio.sleep(1_000)
            assert scheduler.get(ID).passes > 5
            nursery.cancel_scope.cancel()
