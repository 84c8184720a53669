"""Mirrors of the newest data: what is fetched, what is let go, and that nothing else is ever claimed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from chain import instant
from chain.errors import Invalid, NotFound
from chain.model.block import objects_of
from chain.model.events import AddData, SetDataSchema
from chain.multihash import Multihash
from chain.state import load_state
from odfd.control import wire
from odfd.store.holdings import Holdings
from worlds.commits import commit_events
from worlds.eventually import PATIENCE
from worlds.linked_world import schema, slice_at
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World

DAY = instant.DAY * instant.SECOND
HOUR = DAY // 24


async def grow(world: World, node: Node, day: int) -> None:
    """One slice more, a day later, less an hour."""
    world.clock.instant += DAY - HOUR
    world.write("alice", f"d{day:02}.csv", f"2024-01-{day:02}T00:00:00Z,Graz,{day}")
    await node.pull("cities")


async def published(world: World, node: Node, days: int) -> Any:
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
        cities = await published(world, alice, 6)
        all_slices = slices(alice, cities)
        newest = [number for number, _, _ in all_slices[-3:]]
        view = await bob.mirror(cities, "theirs", keep="2d")
        assert (view.state, view.keep, view.held_from) == ("current", "2d", newest[0])
        assert here(bob, cities) == newest
        assert view.held == sum(size for _, _, size in all_slices[-3:])
        assert bob.member.bytes == view.held, "older slices were not even asked for"
        await grow(world, alice, 7)
        await follow(bob, cities, alice.size("cities"))
        newest = [number for number, _, _ in slices(alice, cities)[-3:]]
        assert here(bob, cities) == newest
        (view,) = await bob.mirrors()
        assert (view.held_from, view.held) == (newest[0], sum(size for _, _, size in slices(alice, cities)[-3:]))
        assert (await bob.api.datasets.tail("theirs", 50)).rows == (await alice.api.datasets.tail("cities", 3)).rows


async def test_the_newest_bytes_are_kept_to_the_byte(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice, 5)
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
        cities = await published(world, alice, 4)
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
    """What was here and true is relied on after it is let go; what never was here is not, unless policy asks less."""
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("carol") as carol:
        cities = await published(world, alice, 4)
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
        cities = await published(world, alice, 4)
        await bob.mirror(cities, "theirs", keep="1d")
        old, new = slices(alice, cities)[0][1], slices(alice, cities)[-1][1]
        assert bob.parts.library.object_size(old) is None
        assert bob.parts.library.object_size(new) is not None
        async with world.running("carol") as carol:
            world.wires.cut.add(alice.member.peer_id)
            view = await carol.mirror(cities, "theirs", keep="1d")
            assert (view.state, len(here(carol, cities))) == ("current", 2)


async def test_verify_repair_and_others_know_what_is_not_to_be_here(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice, 4)
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
        cities = await published(world, alice, 4)
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
        cities = await published(world, alice, 5)
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
        cities = await published(world, alice, 2)
        async with world.running("bob") as bob:
            await bob.mirror(cities, "theirs", keep="1d")
            first = bob.member.bytes
        for day in range(3, 9):
            await grow(world, alice, day)
        async with world.running("bob") as bob:
            newest = [number for number, _, _ in slices(alice, cities)[-2:]]
            with trio.fail_after(PATIENCE):
                while bob.size("theirs") < alice.size("cities") or here(bob, cities) != newest:
                    await bob.parts.scheduler.pass_now(cities)
            assert bob.member.bytes == sum(size for _, _, size in slices(alice, cities)[-2:])
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
