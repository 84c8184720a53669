"""The quota of mirrors: held to the byte, told before a fetch begins, and who gives way to whom."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import trio

from chain.errors import Environment, Invalid
from chain.instant import SECOND
from chain.model.block import objects_of
from chain.multihash import Multihash
from config import model
from odfd.mirrors import quota
from odfd.mirrors.mirror_state import SchedulerState
from odfd.mirrors.quota import MirrorQuota
from odfd.published.staging import StagingQuota
from odfd.store.holdings import PER_BLOCK, PER_OBJECT
from odfd.store.mirror_specs import MirrorSpec
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World

ROWS = tuple(f"2024-01-01T00:00:{number % 60:02}Z,{number * 7919 % 10**9:x}-{number},{number}" for number in range(900))


async def published(world: World, node: Node, slices: int) -> Any:
    """Slices of some 10 kB."""
    for number in range(slices):
        world.write("alice", f"a{number}.csv", *(f"2024-01-{number + 1:02}{row[10:]}{number}" for row in ROWS))
        if number == 0:
            await node.apply(ROOT, DERIVED)
        await node.pull()
    await world.spread(node, "cities", "towns")
    return node.dataset("cities")


def sizes(node: Node, name: str) -> list[int]:
    chain = node.home.chains.chain(node.dataset(name))
    return [size for number in range(node.size(name)) for _, size in objects_of(chain.block_at(number))]


def on_disk(node: Node) -> int:
    """Bytes of all objects, and of what is not whole yet."""
    objects = sum(node.home.objects.size(name) for name in node.home.objects.names())
    return objects + sum(file.stat().st_size for file in (node.home.directory / "partial").iterdir())


def blocks_of(node: Node, name: str) -> list[int]:
    chain = node.home.chains.chain(node.dataset(name))
    return [len(raw) for raw in chain.raw_blocks(0, 1 << 40)]


def cost(node: Node, name: str, *, objects: bool = True) -> int:
    """What a mirror of all of it takes: blocks, objects, and what is noted of each."""
    held = sizes(node, name) if objects else []
    blocks = blocks_of(node, name)
    return sum(blocks) + PER_BLOCK * len(blocks) + sum(held) + PER_OBJECT * len(held)


def stored(node: Node) -> int:
    """Bytes of all blocks that lie in a node's database, whoever counts them, and of what is staged as files."""
    with node.home.database.read() as connection:
        (blocks,) = connection.execute("SELECT coalesce(sum(length(raw)), 0) FROM blocks").fetchone()
    staged = (node.home.directory / "staged").rglob("*")
    return int(blocks) + sum(file.stat().st_size for file in staged if file.is_file())


def limited(count: int) -> Any:
    return {"limits": model.Limits(mirror_bytes=count, disk_reserve_bytes=0)}


@pytest.mark.slow
async def test_exactly_the_quota_fits_and_a_byte_less_does_not_begin(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await published(world, alice, 3)
        exact, room = sum(sizes(alice, "cities")), cost(alice, "cities")
        async with world.running("bob", **limited(room)) as bob, world.running("carol", **limited(room - 1)) as carol:
            assert (await bob.mirror(cities, "theirs")).held == on_disk(bob) == exact
            with pytest.raises(Environment, match=r"bytes are missing, and of the [\d,]+ that mirrors may hold"):
                await carol.mirror(cities, "theirs")
            (view,) = await carol.mirrors()
            assert (view.state, view.held, on_disk(carol), carol.member.bytes) == ("failed", 0, 0, 0)
            assert (view.blocks.have, view.blocks.want) == (0, alice.size("cities"))
            assert "limits.mirror-bytes" in view.message
            view = await carol.mirror(cities, "theirs", keep=f"{exact - 1}B")
            assert (view.state, view.held) == ("current", on_disk(carol))


async def test_files_that_are_staged_for_a_mirror_count_towards_the_quota_of_the_node(world: World) -> None:
    async with world.running("bob", **limited(1_000_000)) as bob:
        staging, folder = bob.parts.remotes.staging, bob.home.directory / "staged" / "theirs"
        staging.take(folder, 500_000)
        with pytest.raises(Environment) as caught:
            staging.take(folder, 600_000)
        assert caught.value.rule == "mirror-quota"
        assert 500_000 <= staging.total() < 600_000, "nothing of the refused ones is reserved"
        staging.take(folder, 600_000, is_mirrored=False)


LONG = "x" * 100_000


@pytest.mark.parametrize("want", ["data", "chain"])
async def test_a_chain_of_large_blocks_ends_at_the_quota(world: World, want: str) -> None:
    """Blocks are written by whoever signs them, and may have 16 MiB each; there were as many as the publisher liked."""
    async with world.running("alice") as alice:
        cities = await grown(world, alice, 30)
        async with world.running("bob", **limited(1_000_000)) as bob:
            with pytest.raises(Environment, match="mirrors may hold") as caught:
                await bob.mirror(cities, "theirs", want=want)
            assert caught.value.rule == "mirror-quota"
            assert stored(bob) <= 1_000_000
            for _ in range(3):
                await bob.parts.scheduler.pass_now(cities)
            assert stored(bob) + on_disk(bob) <= 1_000_000
        async with world.running("carol", **limited(cost(alice, "cities"))) as carol:
            assert (await carol.mirror(cities, "theirs", want=want)).state == "current"


async def grown(world: World, node: Node, blocks: int) -> Any:
    """A dataset with so many long descriptions, one after the other."""
    for number in range(blocks):
        described = f"    - {{kind: SetInfo, description: '{number:03}{LONG}'}}\n"
        await node.apply(ROOT + described)
    await world.spread(node, "cities")
    return node.dataset("cities")


async def test_what_our_disk_has_no_room_for_is_withheld_by_nobody(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob", **limited(1)) as bob:
        cities = await published(world, alice, 1)
        with pytest.raises(Environment, match="bytes are missing"):
            await bob.mirror(cities, "theirs")
        for _ in range(2):
            world.clock.instant += 25 * 3600 * SECOND
            await bob.parts.scheduler.pass_now(cities)
        (view,) = await bob.mirrors()
        assert view.state == "failed"
        assert "head.withheld" not in bob.kinds()


async def test_what_was_cut_off_counts_and_goes_before_anything_else(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await published(world, alice, 1)
        exact, other = sum(sizes(alice, "cities")), sum(sizes(alice, "towns"))
        room = max(cost(alice, "cities"), cost(alice, "towns"))
        async with world.running("bob", **limited(room)) as bob:
            folder = bob.home.directory / "partial"

            def cut(data: bytes) -> bytes:
                world.wires.cut.add(alice.member.peer_id)
                return data

            alice.member.lies.object = cut
            await bob.mirror_in_vain(cities, "theirs", lambda mirror: mirror.passes > 0 and on_disk(bob) > 0)
            assert on_disk(bob) < exact
            await bob.api.declarations.delete("Mirror", "theirs")
            (folder / "of somebody else").write_bytes(bytes(100))
            world.wires.cut.clear()
            alice.member.lies.object = bytes
            assert (await bob.mirror(alice.dataset("towns"), "towns")).state == "current"
            assert on_disk(bob) <= max(exact, other)
            assert not list(folder.iterdir()) or exact > other


def test_what_is_written_just_now_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "PER_OBJECT", 0)

    class Held:
        def taken(self) -> int:
            return 60

        def give_way(self, _spec: Any, needed: int) -> bool:
            return needed <= 0

    for number, name in enumerate(["old", "busy", "new"]):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (number, number))
    keeping: Any = Held()
    room = MirrorQuota(keeping, tmp_path, lambda: 100, lambda: ["busy"], StagingQuota(int, lambda _: None))
    spec = MirrorSpec(dataset="did:odf:x", name="x")
    with pytest.raises(Environment, match="60 are taken"):
        room.promise(spec, {Multihash.sha3_256(b"a"): 31})
    assert len(list(tmp_path.iterdir())) == 3, "nothing goes in vain"
    room.promise(spec, {Multihash.sha3_256(b"b"): 15})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["busy", "new"]
    room.promise(spec, {Multihash.sha3_256(b"b"): 15, Multihash.sha3_256(b"c"): 15})
    assert (room.to_come({}), [file.name for file in tmp_path.iterdir()]) == (30, ["busy"])
    room.take_back([Multihash.sha3_256(b"b"), Multihash.sha3_256(b"c")])
    room.promise(spec, {Multihash.sha3_256(b"d"): 30})


def test_what_is_on_the_disk_is_not_to_come(tmp_path: Path) -> None:
    begun, whole, other, new = (Multihash.sha3_256(word) for word in (b"begun", b"whole", b"other", b"new"))
    for name, size in ((begun, 30), (whole, 90), (other, 1000)):
        (tmp_path / str(name)).write_bytes(bytes(size))
    keeping: Any = None
    room = MirrorQuota(keeping, tmp_path, int, tuple, StagingQuota(int, lambda _: None))
    spec = MirrorSpec(dataset="did:odf:x", name="x")
    assert room.to_come({begun: 100, new: 7}) == 77
    room.promise(spec, {begun: 100, whole: 80})
    assert room.to_come({}) == 70
    assert room.to_come({begun: 100, new: 7}) == 77, "what two want comes once"


async def test_a_fetch_that_was_cut_off_needs_room_for_the_rest_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.running("alice") as alice, world.running("bob", **limited(0)) as bob:
        cities = await published(world, alice, 1)
        (name, _), *_ = objects_of(alice.home.chains.chain(cities).block_at(alice.size("cities") - 1))
        (bob.home.directory / "partial" / str(name)).write_bytes(alice.home.objects.read(name, 0, 1000))
        needed = sum(sizes(alice, "cities")) - 1000
        usage, free = shutil.disk_usage(bob.home.directory), needed - 1
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))
        with pytest.raises(Environment, match=f"{needed:,} bytes are missing, and the disk has {free:,} free"):
            await bob.mirror(cities, "theirs")
        await bob.api.declarations.delete("Mirror", "theirs")
        free = needed
        assert (await bob.mirror(cities, "theirs")).state == "current"


@pytest.mark.slow
async def test_lower_priorities_give_way_oldest_first_and_equals_do_not(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await published(world, alice, 3)
        towns, first, second = alice.dataset("towns"), sizes(alice, "cities"), sizes(alice, "towns")
        limit = cost(alice, "cities") + cost(alice, "towns") - 1
        async with world.running("bob", **limited(limit)) as bob:
            await bob.mirror(cities, "cities", priority=-1)
            assert (await bob.mirror(towns, "towns")).state == "current"
            assert on_disk(bob) == sum(first) - first[0] + sum(second) <= limit
            await bob.parts.scheduler.pass_now(cities)
            low, high = await bob.mirrors()
            assert (low.state, low.held, low.held_from > 0) == ("current", sum(first[1:]), True)
            assert low.message == f"data before block #{low.held_from} gave way to towns"
            assert (high.held, high.held_from) == (sum(second), 0)
            assert (await bob.dataset_view("cities")).rely_on.blocks == bob.size("cities")
        async with world.running("carol", **limited(limit)) as carol:
            await carol.mirror(cities, "cities")
            with pytest.raises(Environment, match="mirrors may hold"):
                await carol.mirror(towns, "towns")
            low, high = await carol.mirrors()
            assert (low.held, high.held, on_disk(carol)) == (sum(first), 0, sum(first))


async def test_a_mirror_keeps_to_a_rate_of_its_own(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await published(world, alice, 2)
        towns = alice.dataset("towns")
        async with world.running("bob") as bob:
            began = trio.current_time()
            view = await bob.mirror(cities, "cities", rate="100B/s")
            assert (view.state, view.rate) == ("current", "100B/s")
            paces = bob.parts.object_fetcher.paces
            pace = paces.of(bob.parts.scheduler.get(cities).spec)
            assert pace.due(began) - began > sum(sizes(alice, "cities")) / 100
            assert (await bob.mirror(towns, "towns")).rate is None
            assert paces.of(bob.parts.scheduler.get(towns).spec) is None
            assert (await bob.mirror(cities, "cities", rate="none")).rate is None
            assert pace.due(began) == began, "what is under way is free at once"
            with pytest.raises(Invalid, match="'fast' is no rate"):
                await bob.mirror(towns, "towns", rate="fast")


async def test_nobody_gives_way_when_it_would_not_do(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await published(world, alice, 2)
        towns, first = alice.dataset("towns"), sizes(alice, "cities")
        beside = cost(alice, "cities", objects=False)
        async with world.running("bob", **limited(beside + cost(alice, "towns") - 1)) as bob:
            view = await bob.mirror(cities, "cities", priority=-5, keep=f"{first[-1]}B")
            held = on_disk(bob)
            assert held == view.held == first[-1], (view, first)
            with pytest.raises(Environment, match="mirrors may hold"):
                await bob.mirror(towns, "towns", priority=5)
            assert on_disk(bob) == held == first[-1]
            assert bob.parts.scheduler.get(towns).state is SchedulerState.FAILED
            with pytest.raises(Invalid, match="a priority of 101"):
                await bob.mirror(towns, "towns", priority=101)


@pytest.mark.slow
async def test_what_gave_way_comes_back_when_it_is_mirrored_anew(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await published(world, alice, 3)
        towns, first = alice.dataset("towns"), sizes(alice, "cities")
        async with world.running("bob", **limited(cost(alice, "cities") + cost(alice, "towns") - 1)) as bob:
            await bob.mirror(cities, "cities", priority=-1)
            await bob.mirror(towns, "towns")
            await bob.api.declarations.delete("Mirror", "towns")
            await bob.api.declarations.delete("Dataset", "towns")
            await bob.mirror(cities, "cities", priority=-1)
            await bob.parts.scheduler.pass_now(cities)
            (view,) = await bob.mirrors()
            assert (view.held, view.held_from, view.message) == (sum(first), 0, "")
