"""Slices of a few kilobytes, one in each block: few questions, no files, and nothing less is looked at."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from chain.model.events import AddData
from chain.store.objects import SMALL, DiskObjects
from odfd.control import wire
from odfd.mirrors.mirror_state import SchedulerState
from odfd.mirrors.object_fetcher import together
from p2p.wire.limits import MAX_PACKED
from worlds.eventually import PATIENCE
from worlds.manifests import ROOT
from worlds.node_world import Node, World

DAYS = 9


async def published(world: World, node: Node) -> Any:
    """A dozen blocks, most of them with a slice."""
    await node.apply(ROOT)
    for day in range(1, DAYS + 1):
        world.write("alice", f"a{day}.csv", f"2024-01-{day:02}T00:00:00Z,Graz,{day}")
        await node.pull("cities")
    await world.spread(node, "cities")
    return node.dataset("cities")


def slices(node: Node, name: str) -> list[Any]:
    chain = node.home.chains.chain(node.dataset(name))
    events = [chain.block_at(number).event for number in range(node.size(name))]
    return [event.new_data.physical_hash for event in events if isinstance(event, AddData) and event.new_data]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many objects each question of any node was for."""
    from worlds.node_world import Member

    asked: list[int] = []
    small, one = Member.fetch_small, Member.fetch_object

    async def some(self: Any, peers: Any, names: Any, *more: Any) -> None:
        asked.append(len(names))
        await small(self, peers, names, *more)

    async def alone(self: Any, *more: Any) -> None:
        asked.append(1)
        await one(self, *more)

    monkeypatch.setattr(Member, "fetch_small", some)
    monkeypatch.setattr(Member, "fetch_object", alone)
    return asked


def test_what_is_packed_is_what_lies_in_the_database() -> None:
    assert MAX_PACKED == SMALL


async def test_they_come_together_and_no_file_is_made(
    world: World, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        files: list[Any] = []
        path = DiskObjects.path

        def noted(self: DiskObjects, name: Any) -> Any:
            if self is bob.home.objects:  # those of others are at work too
                files.append(name)
            return path(self, name)

        monkeypatch.setattr(DiskObjects, "path", noted)
        view = await bob.mirror(cities, "theirs")
        names = slices(alice, "cities")
        assert len(names) > 4
        assert (view.state, asked, files) == ("current", [len(names)], [])
        assert all(map(bob.home.objects.has, names))
        assert (await bob.done(bob.api.verification.verify("theirs", wire.VerifyRequest()))).ok


async def test_one_that_nobody_has_is_named_and_the_others_stay(world: World, asked: list[int]) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        names = slices(alice, "cities")
        data = alice.home.objects.read(names[4])
        alice.home.objects.remove(names[4])
        mirror = await bob.mirror_in_vain(cities, "theirs", lambda mirror: mirror.state is SchedulerState.STALLED)
        assert bob.size("theirs") == 0
        assert [bob.home.objects.has(name) for name in names[:5]] == [True] * 4 + [False]
        alice.home.objects.add_bytes(data)
        asked.clear()
        bob.parts.scheduler.poke(cities)
        with trio.fail_after(PATIENCE):
            while bob.size("theirs") < alice.size("cities"):
                await mirror.turned.wait()
        assert sum(asked) <= len(names) - 4, "what came is not asked for again"


async def test_a_flipped_byte_is_never_kept(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        alice.member.lies.object = lambda data: bytes([data[0] ^ 1]) + data[1:]
        await bob.mirror_in_vain(cities, "theirs", lambda mirror: mirror.state is SchedulerState.STALLED)
        assert bob.size("theirs") == 0
        assert not any(bob.home.objects.has(name) for name in slices(alice, "cities"))


def test_large_ones_go_alone() -> None:
    sizes = [1, 1, MAX_PACKED + 1, 1, MAX_PACKED, *[2] * 200]
    groups = list(together(iter([(None, brings(size)) for size in sizes])))  # type: ignore[misc]
    assert [len(group) for group in groups] == [2, 1, 128, 74]


def brings(size: int) -> Any:
    from chain.model.block import SealedBlock
    from chain.multihash import Multihash

    name = Multihash.sha3_256(b"")
    return SealedBlock(b"", name, None, 1, 1, ((name, size),))
