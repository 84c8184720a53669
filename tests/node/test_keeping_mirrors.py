"""Mirrors of the newest data, within a quota, paused: what is here, what gives way, and nothing else is claimed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import trio

from chain import instant
from chain.errors import Environment, Invalid, NotFound, Refused
from chain.instant import SECOND
from chain.model.block import objects_of
from chain.model.events import AddData, SetDataSchema
from chain.multihash import Multihash
from chain.state import load_state
from config import model
from odfd.control import wire
from odfd.mirrors import quota
from odfd.mirrors.mirror_state import SchedulerState
from odfd.mirrors.quota import MirrorQuota
from odfd.published.staging import StagingQuota
from odfd.store.holdings import PER_BLOCK, PER_OBJECT, Holdings
from odfd.store.mirror_specs import MirrorSpec
from p2p.pace import BURST
from worlds.commits import commit_events
from worlds.eventually import PATIENCE
from worlds.linked_world import schema, slice_at
from worlds.manifests import DERIVED, GATE, ROOT, in_shards
from worlds.node_world import Node, World, mirror_of

# Mirrors of the newest data: what is fetched, what is let go, and that nothing else is ever claimed.


DAY = instant.DAY * instant.SECOND
HOUR = DAY // 24


async def grow(world: World, node: Node, day: int) -> None:
    """One slice more, a day later, less an hour."""
    world.clock.instant += DAY - HOUR
    world.write("alice", f"d{day:02}.csv", f"2024-01-{day:02}T00:00:00Z,Graz,{day}")
    await node.pull("cities")


async def publish_days(world: World, node: Node, days: int) -> Any:
    world.write("alice", "d01.csv", "2024-01-01T00:00:00Z,Graz,1")
    await node.apply(ROOT)
    await node.pull()
    for day in range(2, days + 1):
        await grow(world, node, day)
    await world.spread(node, "cities")
    return node.dataset("cities")


def slices(node: Node, dataset: Any) -> list[tuple[int, Any, int]]:
    """Block, name and size of each."""
    chain = node.home.chains.chain(dataset)
    blocks = (chain.block_at(number) for number in range(chain.head().size))
    return [(block.sequence_number, name, size) for block in blocks for name, size in objects_of(block)]


def here(node: Node, dataset: Any) -> list[int]:
    return [number for number, name, _ in slices(node, dataset) if node.home.objects.has(name)]


async def follow(node: Node, dataset: Any, size: int) -> None:
    """Until the mirror has so many blocks and is settled again."""
    await node.heard_head(size)
    await node.parts.scheduler.pass_now(dataset)


async def test_only_the_newest_days_are_fetched_and_older_ones_are_let_go(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_days(world, alice, 6)
        all_slices = slices(alice, cities)
        newest = [number for number, _, _ in all_slices[-3:]]
        view = await bob.mirror(cities, "theirs", keep="2d")
        assert (view.state, view.keep, view.held_from) == ("current", "2d", newest[0])
        assert here(bob, cities) == newest
        assert view.held == sum(size for _, _, size in all_slices[-3:])
        assert bob.member.received == view.held, "older slices were not even asked for"
        await grow(world, alice, 7)
        await follow(bob, cities, alice.size("cities"))
        newest = [number for number, _, _ in slices(alice, cities)[-3:]]
        assert here(bob, cities) == newest
        (view,) = await bob.mirrors()
        assert (view.held_from, view.held) == (newest[0], sum(size for _, _, size in slices(alice, cities)[-3:]))
        assert (await bob.api.datasets.tail("theirs", 50)).rows == (await alice.api.datasets.tail("cities", 3)).rows


async def test_the_newest_bytes_are_kept_to_the_byte(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_days(world, alice, 5)
        sizes = [size for _, _, size in slices(alice, cities)]
        exact = sum(sizes[-2:])
        assert (await bob.mirror(cities, "theirs", keep=f"{exact}B")).held == exact
        assert len(here(bob, cities)) == 2
        assert (await bob.mirror(cities, "theirs", keep=f"{exact - 1}B")).state == "current"
        await bob.parts.scheduler.pass_now(cities)
        assert len(here(bob, cities)) == 1
        await bob.mirror(cities, "theirs", keep="0B")
        await bob.parts.scheduler.pass_now(cities)
        (view,) = await bob.mirrors()
        assert (here(bob, cities), view.held, view.state) == ([], 0, "current")


async def test_a_change_of_mind_fetches_what_was_let_go(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_days(world, alice, 4)
        await bob.mirror(cities, "theirs")
        await bob.mirror(cities, "theirs", keep="1d")
        await bob.parts.scheduler.pass_now(cities)
        assert len(here(bob, cities)) == 2
        await bob.mirror(cities, "theirs", keep="all")
        await bob.parts.scheduler.pass_now(cities)
        assert here(bob, cities) == [number for number, _, _ in slices(alice, cities)]
        (view,) = await bob.mirrors()
        assert (view.keep, view.held_from, view.serving) == (None, 0, True)
        assert (await bob.dataset_view("theirs")).rely_on.blocks == alice.size("cities")
        with pytest.raises(Invalid, match="how much data"):
            await bob.mirror(cities, "theirs", keep="some")
        with pytest.raises(Invalid, match="keeps no data"):
            await bob.mirror(cities, "theirs", keep="1d", want="chain")


@pytest.mark.slow
async def test_reach_says_what_was_looked_at_and_no_more(world: World) -> None:
    """Attack T-PEER-07: a mirror of the newest data that claims to hold the rest.

    Defence: `data` covers the data that was checked here, `odfctl verify` counts the data that is not kept; only stored
    data is served.

    What was here and true is relied on after it is let go; what never was here is not, unless policy asks less.
    """
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("carol") as carol:
        cities = await publish_days(world, alice, 4)
        await bob.mirror(cities, "theirs")
        await bob.mirror(cities, "theirs", keep="1d")
        await bob.parts.scheduler.pass_now(cities)
        size = alice.size("cities")
        assert len(here(bob, cities)) == 2
        assert (await bob.dataset_view("theirs")).rely_on.blocks == size
        view = await carol.mirror(cities, "theirs", keep="1d")
        rely = (await carol.dataset_view("theirs")).rely_on
        assert (rely.blocks, rely.fact, view.serving) == (0, "data at #0", True)
        view = await carol.mirror(cities, "theirs", keep="1d", use="chain", serve="data")
        assert ((await carol.dataset_view("theirs")).rely_on.blocks, view.serving) == (size, False)


async def test_only_what_is_here_is_given_and_asked_of_others(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_days(world, alice, 4)
        await bob.mirror(cities, "theirs", keep="1d")
        old, new = slices(alice, cities)[0][1], slices(alice, cities)[-1][1]
        assert bob.parts.library.object_size(old) is None
        assert bob.parts.library.object_size(new) is not None
        async with world.running("carol") as carol:
            world.wires.cut(alice.member.peer_id)
            view = await carol.mirror(cities, "theirs", keep="1d")
            assert (view.state, len(here(carol, cities))) == ("current", 2)


async def test_verify_repair_and_others_know_what_is_not_to_be_here(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_days(world, alice, 4)
        await bob.mirror(cities, "theirs", keep="1d")
        report = await bob.done(bob.api.verification.verify("theirs", wire.VerifyRequest()))
        assert (report.ok, report.checked.slices, report.checked.not_held) == (True, 2, 2)
        (name,) = [name for number, name, _ in slices(bob, cities)[-1:]]
        bob.home.objects.remove(name)
        report = await bob.done(bob.api.verification.verify("theirs", wire.VerifyRequest()))
        assert [failure.rule for failure in report.failures] == ["slice-missing"]
        (item,) = await bob.pull("theirs", repair=True)
        assert item.outcome in ("updated", "up-to-date"), item
        assert (await bob.done(bob.api.verification.verify("theirs", wire.VerifyRequest()))).ok
        assert len(here(bob, cities)) == 2
        with pytest.raises(NotFound, match="is not kept here"):
            await bob.done(bob.api.flow.export("theirs", wire.ExportRequest(to=str(world.folder / "out"))))
        assert not (world.folder / "out").exists()
        with pytest.raises(NotFound, match="is not kept here"):
            await bob.done(bob.api.verification.verify("theirs", wire.VerifyRequest(level="reproduced")))


@pytest.mark.slow
async def test_what_a_dataset_of_ours_is_derived_from_is_never_let_go(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_days(world, alice, 4)
        await bob.mirror(cities, "cities", keep="1d")
        assert len(here(bob, cities)) == 2
        await bob.apply(DERIVED)
        await bob.parts.scheduler.pass_now(cities)
        assert len(here(bob, cities)) == 4, "all is needed now"
        await bob.pull("towns")
        await grow(world, alice, 5)
        await follow(bob, cities, alice.size("cities"))
        assert len(here(bob, cities)) == 5
        await bob.api.declarations.delete("Dataset", "towns")
        await bob.parts.scheduler.pass_now(cities)
        assert len(here(bob, cities)) == 2


async def test_a_cut_in_the_middle_of_letting_go_is_made_good(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files outlive the plan at the worst, and go with the next look; a damaged plan is made anew."""
    async with world.running("alice") as alice:
        cities = await publish_days(world, alice, 5)
        async with world.running("bob") as bob:
            await bob.mirror(cities, "theirs")
            with monkeypatch.context() as patch:
                patch.setattr(bob.parts.sync._keeping, "_free", lambda *_: None)
                await bob.mirror(cities, "theirs", keep="1d")
                await bob.parts.scheduler.pass_now(cities)
            assert len(here(bob, cities)) == 5
        async with world.running("bob") as bob:
            await bob.parts.scheduler.pass_now(cities)
            assert len(here(bob, cities)) == 2
            with bob.home.database.write() as connection:
                connection.execute("UPDATE held_extents SET first = 2")
                assert Holdings(connection).extent(cities).keep == "?"
            assert (await bob.dataset_view("theirs")).rely_on.blocks == 0, "in doubt nothing was looked at"
            await bob.parts.scheduler.pass_now(cities)
            (view,) = await bob.mirrors()
            assert (view.held_from, len(here(bob, cities))) == (slices(alice, cities)[-2][0], 2)


@pytest.mark.slow
async def test_a_long_absence_fetches_nothing_that_would_be_let_go_at_once(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await publish_days(world, alice, 2)
        async with world.running("bob") as bob:
            await bob.mirror(cities, "theirs", keep="1d")
            first = bob.member.received
        for day in range(3, 9):
            await grow(world, alice, day)
        async with world.running("bob") as bob:
            newest = [number for number, _, _ in slices(alice, cities)[-2:]]
            with trio.fail_after(PATIENCE):
                while bob.size("theirs") < alice.size("cities") or here(bob, cities) != newest:
                    await bob.parts.scheduler.pass_now(cities)
            assert bob.member.received == sum(size for _, _, size in slices(alice, cities)[-2:])
            assert first


async def test_what_rows_link_to_goes_with_the_last_slice_that_links_to_it(world: World, tmp_path: Path) -> None:
    picture, film, song = b"a picture", b"a film" * 20_000, b"a song"
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(ROOT)
        cities = alice.dataset("cities")
        commit(alice, cities, [SetDataSchema(schema=schema())], [])
        append(alice, cities, tmp_path / "a", [picture, film])
        append(alice, cities, tmp_path / "b", [picture, song])
        await world.spread(alice, "cities")
        await bob.mirror(cities, "theirs")
        (view,) = await bob.mirrors()
        old, new = (size for _, _, size in slices(alice, cities))
        assert view.held == old + new + len(picture) + len(film) + len(song)
        left = new + len(picture) + len(song)
        await bob.mirror(cities, "theirs", keep=f"{left}B")
        await bob.parts.scheduler.pass_now(cities)
        (view,) = await bob.mirrors()
        assert (view.held, len(here(bob, cities))) == (left, 1)
        assert [bob.home.objects.has(Multihash.sha3_256(each)) for each in (picture, film, song)] == [True, False, True]
        assert (await bob.done(bob.api.verification.verify("theirs", wire.VerifyRequest()))).ok
        await bob.api.declarations.delete("Dataset", "theirs")
        with bob.home.database.read() as connection:
            assert Holdings(connection).bytes(cities) == 0


def append(node: Node, dataset: Any, file: Path, files: list[bytes]) -> None:
    state = load_state(node.home.chains.chain(dataset))
    data = slice_at(file, [str(Multihash.sha3_256(each)) for each in files], state.next_offset)
    names = [node.home.objects.add_bytes(each) for each in (file.read_bytes(), *files)]
    commit(node, dataset, [AddData(prev_offset=state.last_offset, new_data=data)], names)


def commit(node: Node, dataset: Any, events: list[Any], names: list[Multihash]) -> None:
    commit_events(
        node.parts.committer, dataset, node.home.chains.chain(dataset).head(), events, node.clock.now(), names
    )


# Mirrors that a person pauses: nothing is fetched, all is served, and it stays so over a restart.


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


async def test_a_pause_in_the_middle_loses_nothing(world: World, short_parts: int) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice, *BIG)
        (name,) = [each for each in alice.home.objects.names() if alice.home.objects.size(each) > 1 << 16]
        whole, begun = alice.home.objects.size(name), trio.Event()
        token = trio.lowlevel.current_trio_token()

        def slow(data: bytes) -> bytes:
            if bob.member.received > whole // 2:
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
        # Half had come. A cut loses what is on its way, read and not yet written; resuming may cut once more.
        assert bob.member.received <= whole + 6 * short_parts


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


# The quota of mirrors: held to the byte, told before a fetch begins, and who gives way to whom.


ROWS = tuple(f"2024-01-01T00:00:{number % 60:02}Z,{number * 7919 % 10**9:x}-{number},{number}" for number in range(900))


async def publish_slices(world: World, node: Node, slices: int) -> Any:
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
    """Attack T-PEER-08: datasets that grow until the disk is full.

    Defence: `limits.mirror-bytes` and the disk's reserve are checked before a byte is requested.
    """
    async with world.running("alice") as alice:
        cities = await publish_slices(world, alice, 3)
        exact, room = sum(sizes(alice, "cities")), cost(alice, "cities")
        async with world.running("bob", **limited(room)) as bob, world.running("carol", **limited(room - 1)) as carol:
            assert (await bob.mirror(cities, "theirs")).held == on_disk(bob) == exact
            with pytest.raises(Environment, match=r"bytes are missing, and of the [\d,]+ that mirrors may hold"):
                await carol.mirror(cities, "theirs")
            (view,) = await carol.mirrors()
            assert (view.state, view.held, on_disk(carol), carol.member.received) == ("failed", 0, 0, 0)
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
    """Attack T-PEER-08: a chain of large blocks, staged blocks of a web site, a million tiny objects, under a quota of
    data.

    Defence: everything that a mirror writes is counted, with the overhead of tables and files, before it is written; a
    transfer stops when there is no room.

    Blocks are written by whoever signs them, and may have 16 MiB each; there were as many as the publisher liked.
    """
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
        cities = await publish_slices(world, alice, 1)
        with pytest.raises(Environment, match="bytes are missing"):
            await bob.mirror(cities, "theirs")
        for _ in range(2):
            world.clock.instant += 25 * 3600 * SECOND
            await bob.parts.scheduler.pass_now(cities)
        (view,) = await bob.mirrors()
        assert view.state == "failed"
        assert "head.withheld" not in bob.kinds()


async def test_what_was_cut_off_counts_and_goes_before_anything_else(world: World, short_parts: int) -> None:
    async with world.running("alice") as alice:
        cities = await publish_slices(world, alice, 1)
        exact, other = sum(sizes(alice, "cities")), sum(sizes(alice, "towns"))
        room = max(cost(alice, "cities"), cost(alice, "towns"))
        async with world.running("bob", **limited(room)) as bob:
            folder = bob.home.directory / "partial"

            def cut(data: bytes) -> bytes:
                if on_disk(bob):
                    world.wires.cut(alice.member.peer_id)
                return data

            alice.member.lies.object = cut
            await bob.mirror_in_vain(cities, "theirs", lambda mirror: mirror.passes > 0 and on_disk(bob) > 0)
            assert on_disk(bob) < exact
            await bob.api.declarations.delete("Mirror", "theirs")
            (folder / "of somebody else").write_bytes(bytes(100))
            world.wires.heal()
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
        cities = await publish_slices(world, alice, 1)
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
        cities = await publish_slices(world, alice, 3)
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
        cities = await publish_slices(world, alice, 2)
        towns = alice.dataset("towns")
        async with world.running("bob") as bob:
            began = trio.current_time()
            view = await bob.mirror(cities, "cities", rate="20kB/s")
            assert (view.state, view.rate) == ("current", "20kB/s")
            paces = bob.parts.object_fetcher.paces
            pace = paces.of(bob.parts.scheduler.get(cities).spec)
            charged = sum(sizes(alice, "cities")) / 20_000
            assert pace.due(began) - began >= charged - BURST > 0, "all of it, but what may come at once"
            assert (await bob.mirror(towns, "towns")).rate is None
            assert paces.of(bob.parts.scheduler.get(towns).spec) is None
            assert (await bob.mirror(cities, "cities", rate="none")).rate is None
            assert pace.due(began) == began, "what is under way is free at once"
            with pytest.raises(Invalid, match="'fast' is no rate"):
                await bob.mirror(towns, "towns", rate="fast")


async def test_nobody_gives_way_when_it_would_not_do(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await publish_slices(world, alice, 2)
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
        cities = await publish_slices(world, alice, 3)
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


# A dataset of another node takes nothing in here: its owner feeds it.


OF_CITIES = GATE.replace("{kind: Append}", "{kind: Ledger, primaryKey: [city]}")


async def push(node: Node, *rows: str) -> wire.PullItem:
    async def chunks() -> Any:
        yield "\n".join(["event_time,city,population", *rows, ""]).encode()

    upload = await node.api.flow.stage("some.csv", chunks())
    done = await node.done(node.api.flow.ingest("readings", wire.IngestRequest(uploads=(upload.id,))))
    (item,) = done.items
    return item  # type: ignore[no-any-return]


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_mirror_is_fed_by_its_owner_alone(world: World, shards: int) -> None:
    """Also where the authority of the dataset names this node's key as a writer."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(OF_CITIES if shards == 1 else in_shards(OF_CITIES))
        await push(alice, "2024-01-01T00:00:00Z,Graz,1")
        draft = await alice.api.authority.draft_authority(
            "readings", wire.AuthorityDraftRequest(action="add-writer", key=bob.key)
        )
        await alice.api.authority.change_authority("readings", wire.AuthorityRequest(payload=draft.payload))
        await alice.publish("readings")
        await world.spread(alice, "readings")
        await bob.mirror(alice.dataset("readings"), "readings")
        size = alice.size("readings")
        with pytest.raises(Refused, match="readings is a mirror: its owner feeds it") as refused:
            await push(bob, "2024-01-01T00:00:00Z,Wels,1")
        assert refused.value.rule == "ingest-owner"
        assert alice.size("readings") == bob.size("readings") == size
        await push(alice, "2024-01-01T00:00:00Z,Linz,1")
        await world.spread(alice, "readings")
        await bob.pull("readings")
        rows = (await bob.api.datasets.tail("readings", 10)).rows
        assert sorted(each[-2] for each in rows) == ["Graz", "Linz"]
