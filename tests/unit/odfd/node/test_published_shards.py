"""Collections that others know hand over to any number of shards, and mirrors cross at the time of the publisher."""

from __future__ import annotations

from typing import Any

from unit.odfd.node.test_mirrored_shards import brought, signed
from unit.odfd.node.test_shards import LEDGER, shard, standing

from odfd.control import wire
from worlds.eventually import became


async def over(node: Any, number: int, name: str = "cities") -> None:
    await node.done(node.api.renditions.hand_over(name, number, wire.HandoverRequest()))
    await signed(node)


async def known(world: Any, worlds: Any, node: Any) -> None:
    """A published collection of one chain."""
    await node.apply(worlds.ROOT.replace("{kind: Append}", LEDGER))
    await brought(world, node, 1, "Graz", "Linz", "Wels", "Enns", "Melk")
    await signed(node)


async def test_mirrors_follow_to_any_number_of_shards_and_back(world: Any, worlds: Any) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await known(world, worlds, alice)
        await bob.mirror(alice.dataset("cities"), "theirs")
        for number, count in enumerate((3, 5, 1, 2), start=1):
            await shard(alice, count, *(("city",) if count > 1 else ()))
            await brought(world, alice, number + 1, "Graz", "Krems")
            await over(alice, number)
            await bob.heard("rendition.followed", number)
            assert await standing(bob, "theirs") == await standing(alice, "cities")
            assert len((await bob.api.datasets.get("theirs")).shards) == (count if count > 1 else 0)
        await over(alice, 1)
        await bob.heard("rendition.followed", 5)
        await brought(world, alice, 9, "Steyr")
        await became(lambda: bob.size("theirs") == alice.size("cities"))
        assert bob.dataset("theirs") == alice.dataset("cities")
        await bob.pull("theirs")
        assert await standing(bob, "theirs") == await standing(alice, "cities")
        theirs, own = bob.api.renditions._effects, alice.api.renditions._effects
        there, here = theirs.state(bob.dataset("theirs")), own.state(alice.dataset("cities"))
        assert [each.time for each in there.timeline.switches] == [each.time for each in here.timeline.switches]
        assert [each.row.shards for each in there.members] == [each.row.shards for each in here.members]
        for number, (before, after) in enumerate(zip(here.timeline.switches, here.timeline.switches[1:], strict=False)):
            assert before != after, number
        for ref in ("theirs.r0", "theirs.r2", "theirs.r3", "theirs.r4"):
            reading, said = (
                await bob.api.renditions.reading(ref),
                await alice.api.renditions.reading(ref.replace("theirs", "cities")),
            )
            assert (reading.time, len(reading.new_shards)) == (said.time, len(said.new_shards))
