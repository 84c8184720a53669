"""What rows link to comes to mirrors with the rows, is passed on by them, and is believed as little as all else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from chain.data import object_links
from chain.errors import Environment, Invalid
from chain.model.events import AddData, SetDataSchema, SetInfo
from chain.multihash import Multihash
from chain.state import load_state
from odfd.control import wire
from odfd.mirrors import object_fetcher, sync
from odfd.mirrors.mirror_state import SchedulerState
from odfd.mirrors.object_fetcher import ObjectLimits
from odfd.store.ledger.log import Ledger
from odfd.store.references import references_to
from worlds.commits import commit_events
from worlds.eventually import PATIENCE
from worlds.linked_world import FILES, schema, slice_at
from worlds.manifests import ROOT
from worlds.node_world import Node, World

NAMES = [Multihash.sha3_256(each) for each in FILES]


async def published(world: World, node: Node, folder: Path, *more: bytes) -> Any:
    """Two slices: the second links to one more file beside the first one's."""
    await node.apply(ROOT)
    cities = node.dataset("cities")
    commit(node, cities, [SetDataSchema(schema=schema())], [])
    append(node, cities, folder / "a", FILES)
    append(node, cities, folder / "b", [FILES[0], *more, b"a song"])
    await world.spread(node, "cities")
    return cities


def append(node: Node, dataset: Any, file: Path, files: list[bytes]) -> None:
    state = load_state(node.home.chains.chain(dataset))
    data = slice_at(file, [str(Multihash.sha3_256(each)) for each in files], state.next_offset)
    staged = node.home.objects.stage()
    staged.write_bytes(file.read_bytes())
    names = [node.home.objects.add_file(staged), *(node.home.objects.add_bytes(each) for each in files)]
    commit(node, dataset, [AddData(prev_offset=state.last_offset, new_data=data)], names)


def commit(node: Node, dataset: Any, events: list[Any], names: list[Multihash]) -> None:
    commit_events(
        node.parts.committer, dataset, node.home.chains.chain(dataset).head(), events, node.clock.now(), names
    )


def whole(node: Node, name: str = "theirs") -> bool:
    with node.home.database.read() as connection:
        checked = Ledger(connection).chain(node.dataset(name))
    return bool(checked.data == checked.frontier.size == node.size(name) > 0)


async def until(node: Node, name: str, done: Any) -> None:
    with trio.fail_after(PATIENCE):
        while not done():
            mirror = node.parts.scheduler.get(node.dataset(name))
            mirror.poked.set()
            await mirror.turned.wait()


@pytest.mark.slow
async def test_it_comes_along_and_is_passed_on(world: World, tmp_path: Path) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("carol") as carol:
        cities = await published(world, alice, tmp_path)
        assert (await bob.mirror(cities, "theirs")).state == "current"
        assert whole(bob)
        world.wires.cut.add(alice.member.peer_id)
        assert (await carol.mirror(cities, "theirs")).state == "current"
        assert (await carol.done(carol.api.verification.verify("theirs", wire.VerifyRequest(level="data")))).ok
        assert all(carol.home.objects.read(name) == each for name, each in zip(NAMES, FILES, strict=True))


async def test_it_is_on_offer_after_a_compaction_and_not_after_its_rows_went(world: World, tmp_path: Path) -> None:
    song = Multihash.sha3_256(b"a song")
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice, tmp_path)
        append(alice, cities, tmp_path / "c", [b"a play"])
        commit(alice, cities, [SetInfo(description="later")], [])
        append(alice, cities, tmp_path / "d", [b"a poem"])
        poem, before = Multihash.sha3_256(b"a poem"), alice.size("cities")
        request = wire.RewriteRequest(action="compact")
        done = await alice.done(alice.api.rewriting.rewrite("cities", request))
        assert (done.merged, done.into, alice.size("cities")) == (3, 1, before - 2)
        merged = alice.home.chains.chain(cities).block_at(done.kept).event.new_data.physical_hash
        with alice.home.database.read() as connection:
            for name, number in ((merged, done.kept), (song, done.kept), (NAMES[0], done.kept), (poem, done.kept + 2)):
                assert references_to(connection, name) == [(cities, number)]
            named, linked = (
                connection.execute(f"SELECT count(*) FROM {table}").fetchone()
                for table in ("object_references", "object_links")
            )
        assert (named, linked) == ((2,), (len(FILES) + 3,)), "two slices, and what rows link to"
        await world.spread(alice, "cities")
        assert (await bob.mirror(cities, "theirs")).state == "current"
        assert whole(bob)
        assert bob.home.objects.read(song) == b"a song"
        for _ in range(2):
            await alice.done(alice.api.collection.collect(wire.CollectRequest()))
        assert alice.home.objects.read(song) == b"a song"
        await alice.done(alice.api.rewriting.rewrite("cities", wire.RewriteRequest(action="keep-metadata")))
        with alice.home.database.read() as connection:
            assert references_to(connection, song) == references_to(connection, poem) == []


async def test_without_it_nothing_counts_and_what_came_stays(world: World, tmp_path: Path) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice, tmp_path)
        alice.home.objects.remove(NAMES[1])
        mirror = await bob.mirror_in_vain(cities, "theirs", lambda mirror: mirror.state is SchedulerState.STALLED)
        assert NAMES[1].short in mirror.message
        assert bob.size("theirs") == 0
        before = bob.member.bytes
        alice.home.objects.add_bytes(FILES[1])
        await until(bob, "theirs", lambda: mirror.state is SchedulerState.CURRENT)
        assert whole(bob)
        assert bob.member.bytes - before <= len(FILES[1]) + len(b"a song") + 8192


@pytest.mark.slow
@pytest.mark.parametrize("lie", [lambda _: 1 << 50, lambda size: size - 1, lambda size: size + 1])
async def test_a_size_that_is_a_lie_spoils_nothing(world: World, tmp_path: Path, lie: Any) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("carol") as carol:
        cities = await published(world, alice, tmp_path)
        assert (await carol.mirror(cities, "theirs")).state == "current"
        alice.member.lies.size = lie
        assert (await bob.mirror(cities, "theirs")).state == "current"
        assert whole(bob)


async def test_one_that_is_too_large_is_not_asked_for(world: World, tmp_path: Path) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice, tmp_path)
        bob.parts.object_fetcher._limits = lambda: ObjectLimits(object_bytes=len(FILES[1]) - 1)
        mirror = await bob.mirror_in_vain(cities, "theirs", lambda mirror: bool(mirror.message))
        assert "object-bytes allows" in mirror.message
        assert not bob.home.objects.has(NAMES[1])
        bob.parts.object_fetcher._limits = lambda: ObjectLimits(disk_reserve=1 << 60)
        await until(bob, "theirs", lambda: mirror.state is SchedulerState.FAILED)
        assert mirror.fault.rule == "disk-reserve"
        bob.parts.object_fetcher._limits = lambda: ObjectLimits()
        await until(bob, "theirs", lambda: whole(bob))


@pytest.mark.slow
async def test_a_slice_that_links_to_too_much_is_refused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many links are read a page at a time; more than may be are refused, and nothing is kept."""
    monkeypatch.setattr(object_fetcher, "PAGE", 2)
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("carol") as carol:
        cities = await published(world, alice, tmp_path, *(f"file {n}".encode() for n in range(9)))
        assert (await carol.mirror(cities, "theirs")).state == "current"
        assert whole(carol)
        monkeypatch.setattr(object_links, "MAX_LINKS", 10)
        with pytest.raises(Invalid, match="more than 10 objects linked from one slice"):
            await bob.mirror(cities, "theirs")
        assert bob.size("theirs") == 0


async def test_chain_first_then_data(world: World, tmp_path: Path) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice, tmp_path)
        await bob.mirror(cities, "theirs", want="chain")
        assert not any(bob.home.objects.has(name) for name in NAMES)
        await bob.mirror(cities, "theirs", want="data")
        await until(bob, "theirs", lambda: whole(bob))
        assert all(bob.parts.library.object_size(name) == len(each) for name, each in zip(NAMES, FILES, strict=True))


async def test_a_cut_before_links_are_noted_is_mended(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any) -> None:
        raise Environment("the power went")

    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice, tmp_path)
        monkeypatch.setattr(sync, "note_links", cut)
        with pytest.raises(Environment, match="the power went"):
            await bob.mirror(cities, "theirs")
        assert bob.size("theirs") == alice.size("cities")
        assert not whole(bob)
        assert bob.parts.library.object_size(NAMES[0]) is None
        monkeypatch.undo()
        await until(bob, "theirs", lambda: whole(bob))
        assert bob.parts.library.object_size(NAMES[0]) == len(FILES[0])


async def test_what_our_disk_spoilt_is_fetched_anew(world: World, tmp_path: Path) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice, tmp_path)
        await bob.mirror(cities, "theirs")
        path = bob.home.objects.path(NAMES[1])
        path.chmod(0o644)
        path.write_bytes(b"another film")
        (item,) = await bob.pull("theirs", repair=True)
        assert (item.outcome, item.message) == ("updated", "1 damaged object made whole")
        assert bob.home.objects.read(NAMES[1]) == FILES[1]


async def test_an_import_passes_it_on_too(world: World, tmp_path: Path) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await published(world, alice, tmp_path)
        await alice.done(alice.api.flow.export("cities", wire.ExportRequest(to=str(tmp_path / "out"))))
        await bob.done(bob.api.flow.import_(wire.ImportRequest(source=str(tmp_path / "out"), as_name="theirs")))
        with bob.home.database.read() as connection:
            assert all(references_to(connection, name) for name in NAMES)
