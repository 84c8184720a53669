"""Mirrors that a person pauses: nothing is fetched, all is served, and it stays so over a restart."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from chain.errors import NotFound, Refused
from odfd.mirrors.mirror_state import SchedulerState
from worlds.manifests import ROOT
from worlds.node_world import Node, World, mirror_of

BIG = tuple(f"2024-01-01T00:00:{number % 60:02}Z,{number * 7919 % 10**9:x}-{number},{number}" for number in range(8000))


async def published(world: World, node: Node, *rows: str) -> Any:
    world.write("alice", "a.csv", *(rows or ["2024-01-01T00:00:00Z,Graz,300000"]))
    await node.apply(ROOT)
    await node.pull()
    await world.spread(node, "cities")
    return node.dataset("cities")


async def test_a_paused_mirror_fetches_nothing_until_it_is_resumed(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        async with world.running("bob") as bob:
            await bob.mirror(cities, "theirs")
            view = mirror_of(await bob.api.mirrors.pause("theirs"))
            assert (view.state, view.blocks.have, view.serving) == ("paused", alice.size("cities"), True)
            world.write("alice", "b.csv", "2024-01-03T00:00:00Z,Wels,60000")
            await alice.pull("cities")
            await bob.heard_head(alice.size("cities"))
            (item,) = await bob.pull("theirs")
            assert (item.outcome, item.message) == ("blocked", "it is paused: odfctl mirror resume theirs")
            with pytest.raises(Refused, match="theirs is paused"):
                await bob.parts.scheduler.pass_now(cities)
            assert bob.size("theirs") == alice.size("cities") - 1
            assert bob.parts.library.size(cities) == bob.size("theirs")
        async with world.running("bob") as bob:
            (view,) = await bob.mirrors()
            assert (view.state, view.blocks.want) == ("paused", alice.size("cities"))
            view = mirror_of(await bob.api.mirrors.resume("theirs"))
            assert view.state != "paused"
            assert [item.outcome for item in await bob.pull("theirs")] != ["blocked"]
            assert bob.size("theirs") == alice.size("cities")
            assert bob.kinds().count("mirror.resumed") == 1


async def test_a_pause_in_the_middle_loses_nothing(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice, *BIG)
        (name,) = [each for each in alice.home.objects.names() if alice.home.objects.size(each) > 1 << 16]
        whole, begun = alice.home.objects.size(name), trio.Event()
        token = trio.lowlevel.current_trio_token()

        def slow(data: bytes) -> bytes:
            if bob.member.bytes > whole // 2:
                token.run_sync_soon(begun.set)
            return data

        alice.member.lies.object = slow
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bob.mirror, cities, "theirs")
            await begun.wait()
            assert mirror_of(await bob.api.mirrors.pause("theirs")).state == "paused"
        assert bob.parts.scheduler.get(cities).state is SchedulerState.PAUSED
        await bob.mirror(cities, "theirs")  # adding it anew resumes it too
        assert bob.size("theirs") == alice.size("cities")
        assert bob.member.bytes <= whole + 2 * 4096


async def test_what_is_no_mirror_cannot_be_paused(world: World) -> None:
    async with world.running("alice") as alice:
        await published(world, alice)
        with pytest.raises(NotFound, match="not mirrored"):
            await alice.api.mirrors.pause("cities")


async def test_a_manifest_pauses_and_resumes_too(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        text = f"$schema: Mirror\nheaders: {{name: theirs}}\nspec: {{source: '{cities}', keep: all%s}}\n"
        for more, actions in ((", paused: true", "created"), ("", "updated"), (", paused: true", "updated")):
            (made,) = (await bob.apply(text % more)).items
            assert made.action == actions
            mirror = bob.parts.scheduler.get(cities)
            assert (mirror.state is SchedulerState.PAUSED, mirror.ended.is_set()) == (bool(more), bool(more))
            (again,) = (await bob.apply(text % more)).items
            assert again.action == "unchanged"
        (view,) = await bob.mirrors()
        assert view.state == "paused"
