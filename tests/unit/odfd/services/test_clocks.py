"""Clocks that go backwards or far ahead: what is here stays, what comes is judged, nothing raises."""

from __future__ import annotations

from typing import Any

import pytest

from chain import instant
from chain.instant import Instant
from odfd.control import wire

HOUR = 3600 * instant.SECOND
YEAR = 365 * 86400 * instant.SECOND


async def grown(world: Any, node: Any, number: int) -> Any:
    world.write(node.home.directory.parent.name, f"{number}.csv", f"2024-01-{number + 1:02}T00:00:00Z,Graz,{number}")
    (item,) = await node.pull("cities")
    return item


async def test_a_clock_an_hour_ahead_delays_and_nothing_more(world: Any, worlds: Any) -> None:
    """Its heads are taken when their time has come for others, and whoever passes them on is not to blame."""
    slow, fast = world.clock, worlds.Ticking(Instant(world.clock.instant + HOUR))
    world.clock = fast
    async with world.running("alice") as alice:
        await alice.apply(worlds.ROOT)
        await grown(world, alice, 0)
        cities = alice.dataset("cities")
        world.clock = slow
        async with world.running("bob") as bob:
            await bob.api.mirrors.add(wire.MirrorRequest(source=str(cities), as_name="theirs"))
            mirror = await bob.parts.keeper.pass_now(cities)
            assert "no signed head" in mirror.message
            slow.instant += HOUR
            await bob.member.pull_statements(alice.member.peer_id, [cities])
            await bob.pull("theirs")
            assert bob.size("theirs") == alice.size("cities")


@pytest.mark.parametrize("jump", [-YEAR, -instant.SECOND, YEAR])
async def test_time_that_jumps_loses_nothing(world: Any, worlds: Any, jump: int) -> None:
    """The publisher's, in the middle of its life; another's too, and over a restart."""
    async with world.running("alice") as alice:
        await alice.apply(worlds.ROOT)
        assert (await grown(world, alice, 0)).outcome == "updated"
        cities, before = alice.dataset("cities"), alice.size("cities")
        async with world.running("bob") as bob:
            await bob.mirror(cities, "theirs")
            world.clock.instant += jump
            item = await grown(world, alice, 1)
            assert item.outcome == "updated", item
            assert alice.size("cities") == before + 1
            await bob.pull("theirs")
            assert bob.size("theirs") == alice.size("cities")
            assert (await bob.done(bob.api.verification.verify("theirs", wire.VerifyRequest(level="data")))).ok
    async with world.running("alice") as alice:
        assert (await grown(world, alice, 2)).outcome == "updated"
        assert (await alice.done(alice.api.verification.verify("cities", wire.VerifyRequest(level="data")))).ok
