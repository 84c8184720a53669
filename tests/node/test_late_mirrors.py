"""A mirror that is late at a handover shows no row that its owner has already copied for the way back."""

from __future__ import annotations

from typing import Any

import pytest
from node.test_mirrored_shards import brought
from node.test_published_shards import known, over
from node.test_shards import Died, shard, standing

from odfd.control import wire
from odfd.errors import Bug
from odfd.mirrors.holders import Holders
from odfd.queries.log_files import files_of_log
from worlds.eventually import became
from worlds.node_world import Node, World


async def seen(node: Node, ref: str) -> tuple[Any, ...]:
    """Everything that a name shows: rows in force, the newest rows, the frontier, and where it would be held."""
    held = await node.api.holds.take(wire.HoldRequest(ref=ref))
    await node.api.holds.release(held.id)
    records = await node.api.datasets.tail(ref, 100)
    pins = tuple((each.id, each.block) for each in held.shards or (held.pin,))
    rows = sorted(tuple(map(str, row)) for row in records.rows)
    return await standing(node, ref), rows, (await node.dataset_view(ref)).frontiers, held.time, pins


def listened(node: Node, ref: str) -> tuple[Any, ...]:
    """The cuts that a listener of the name gets."""
    asked = wire.SlicesRequest(dataset=str(node.dataset(ref)), explain=True, together=True)
    return tuple(
        (pin.id, pin.block) for pin in files_of_log(node.home, node.api.queries._planner.plan, asked).head.pins
    )


@pytest.mark.parametrize(("first", "other"), [(1, 3), (3, 1)])
async def test_rows_that_are_copied_back_are_not_shown_before(world: World, first: int, other: int) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await known(world, alice)
        if first > 1:
            await shard(alice, first, "city")
            await over(alice, 1)
        number = int(first > 1)
        old = alice.dataset("cities")
        shards = alice.home.shards_of(old)
        await bob.mirror(old, "theirs")
        await became(lambda: bob.home.shards_of(old) == shards)
        before, rows = await seen(bob, "theirs"), await standing(alice, "cities")
        asked, late = Holders.of, set[Any]()

        async def slow(self: Holders, dataset: Any, size: int) -> Any:
            return [] if dataset in late else await asked(self, dataset, size)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Holders, "of", slow)
            await shard(alice, other, *(("city",) if other > 1 else ()))
            late |= {*alice.home.shards_of(alice.dataset(f"cities.r{number + 1}"))}
            await over(alice, number + 1)
            await brought(world, alice, 2, "Krems")
            await brought(world, alice, 3, "Steyr")
            lengths = [_length(alice, each) for each in shards]

            def dying(name: str) -> None:
                """Ends the process when the first copy is in the old rendition, not only in another one like it."""
                if name == "copied" and [_length(alice, each) for each in shards] != lengths:
                    raise Died(name)

            alice.api.renditions._effects.step = dying
            with pytest.raises(Bug):
                await over(alice, number)
            for place, each in enumerate(shards):
                alice.parts.committer.sign_upper(each)
                await bob.pull("theirs" if not place else str(each))
            await became(lambda: all(_length(bob, each) == _length(alice, each) for each in shards))
            copied = [await standing(bob, str(each)) for each in shards]
            assert sum(map(len, copied)) > len(rows), "a copied row is here"
            await bob.parts.handovers._follow(old)
            assert bob.dataset("theirs") == old
            after = await seen(bob, "theirs")
            assert (after[0], after[1]) == (before[0], before[1])
            assert after[3] >= before[3]
            assert await standing(bob, "theirs") == rows
            assert listened(bob, "theirs") == after[4], "a listener has the same cut"
        alice.api.renditions._effects.step = lambda _: None
        await over(alice, number)
        for each in (*shards, *late):
            await bob.pull(str(each))
        await became(lambda: all(_length(bob, each) == _length(alice, each) for each in shards))
        assert bob.dataset("theirs") == old
        assert await standing(bob, "theirs") == await standing(alice, "cities")


def _length(node: Node, shard: Any) -> int:
    head = node.home.chains.chain(shard).head()
    return 0 if head is None else int(head.size)
