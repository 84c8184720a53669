"""Views of all datasets: as they are after a start, and at what cost for each."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from chain.codec.blocks import decode_block, encode_block
from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId, DatasetName
from chain.instant import Instant
from chain.model.block import MetadataBlock
from chain.model.events import AddData, DatasetKind, DataSlice, OffsetInterval, Seed
from chain.multihash import Multihash
from chain.state import ChainState, load_state
from chain.store.base import Append, ChainReader
from config import model
from odfd.control import wire
from odfd.resources import records
from odfd.runtime.supervision import Life
from odfd.services.resources.views import manifest_of
from odfd.services.views import data_sizes, views
from odfd.services.views.cache import QUIET_SECONDS, ViewRefresher
from odfd.services.views.data_sizes import DataSizes
from odfd.services.views.views import DatasetViews
from odfd.store import mirror_specs, saved_views
from odfd.store.catalog import Catalog, DatasetEntry
from odfd.store.directory import DATABASE
from odfd.store.visibility import VisibilityMark
from worlds.accounts_world import ACCOUNT, ALICE, DATASET
from worlds.counted import Questions, questions
from worlds.eventually import PATIENCE, PAUSE
from worlds.manifests import BOTH, DERIVED, ROOT
from worlds.node_world import Node, World

# The first list after a start shows what was saved of each dataset, and nothing that is not so any more.


__all__ = ["questions"]
DAYS = 86400 * 10**9


async def saved(world: World, name: str, count: int = 1) -> None:
    """A node with a root, a dataset derived from it and ``count`` more, that ended when all views were saved."""
    world.write(name, "1.csv", "2024-01-01T00:00:00Z,Graz,1")
    async with world.running(name) as node:
        await node.apply(BOTH)
        await node.apply("---\n".join(ROOT.replace("name: cities", f"name: c{each}") for each in range(count)))
        await node.pull()
    node = world.node(name)
    node.parts.views.refresher.refresh()
    assert rows(node) == {entry.id for entry in node.parts.views.cache.entries()}
    assert len(rows(node)) == count + 2
    world.close()


def rows(node: Node) -> set[DatasetId]:
    with node.home.database.read() as connection:
        return {row.dataset for row in saved_views.whole(connection)}


def anew(node: Node) -> list[wire.DatasetView]:
    return [node.parts.views.cache.look(entry) for entry in node.parts.views.cache.entries()]


def in_the_file(world: World, name: str, change: Callable[[sqlite3.Connection], object]) -> None:
    """Something changes in the database while no node has it open."""
    with closing(sqlite3.connect(world.folder / name / "state" / DATABASE)) as connection, connection:
        change(connection)


async def test_the_first_list_after_a_start_asks_as_much_whatever_is_there(world: World, questions: Questions) -> None:
    asked = []
    for name, count in (("few", 1), ("many", 20)):
        await saved(world, name, count)
        views = world.node(name).parts.views
        with questions.during() as during:
            assert len(views.all()) == count + 2
        assert not any("FROM blocks" in each for each in during), during
        asked.append(len(during))
    assert asked[1] == asked[0] < 10


def _other_head(connection: sqlite3.Connection) -> None:
    """Whole, but of another head, and with another number of records."""
    for row in list(saved_views.whole(connection)):
        head = bytes(row.head or b"")
        head = head[:-1] + bytes([head[-1] ^ 1])
        view = row.view.replace(b'"records":1', b'"records":7')
        values = (row.dataset, head, row.basis, row.at, row.until, b"\x90", view)
        saved_views.SAVED.put(connection, *values)


def _flipped(connection: sqlite3.Connection) -> None:
    connection.execute("""UPDATE saved_views SET view = CAST(replace(CAST(view AS TEXT), ':1', ':7') AS BLOB)""")


def _no_view(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE saved_views SET view = x'7b', inputs = x'c1', seal = NULL")


def _gone(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM saved_views")


@pytest.mark.parametrize("change", [_other_head, _flipped, _no_view, _gone])
async def test_what_was_saved_of_another_head_or_is_damaged_is_not_shown(
    world: World, change: Callable[[sqlite3.Connection], None]
) -> None:
    await saved(world, "alice")
    in_the_file(world, "alice", change)
    node = world.node("alice")
    first = node.parts.views.all()
    assert first == anew(node)
    assert {view.records for view in first} == {1}


async def test_what_was_saved_by_other_rules_or_long_ago_is_not_shown(world: World) -> None:
    await saved(world, "alice")
    node = world.node("alice")
    node.parts.reload(model.Settings(policy=model.Policy(use="reproduced")))
    assert node.parts.views.all() == anew(node)
    world.close()
    node = world.node("alice")
    node.clock.instant += 30 * DAYS
    first = node.parts.views.all()
    assert {view.state for view in first} == {"stale"}
    assert first == anew(node)


async def test_a_write_drops_what_was_saved_of_what_rests_on_it_in_the_same_transaction(world: World) -> None:
    await saved(world, "alice", 3)
    node = world.node("alice")
    all_of_them, cities, towns = rows(node), node.dataset("cities"), node.dataset("towns")

    def touch(name: str) -> None:
        before = rows(node)
        with node.home.database.write() as connection:
            statement = "UPDATE trust_chains SET data = data WHERE dataset = ?"
            assert connection.execute(statement, (node.dataset(name),)).rowcount == 1
            assert rows(node) == before, "not before it is durable"

    def fail() -> None:
        with node.home.database.write() as connection:
            connection.execute("UPDATE trust_chains SET data = data")
            raise ZeroDivisionError

    touch("c1")
    assert rows(node) == all_of_them - {node.dataset("c1")}
    touch("cities")
    assert rows(node) == all_of_them - {node.dataset("c1"), cities, towns}
    with pytest.raises(ZeroDivisionError):
        fail()
    assert rows(node) == all_of_them - {node.dataset("c1"), cities, towns}
    node.parts.views.refresher.refresh()
    assert rows(node) == all_of_them


async def test_a_name_a_mirror_and_a_mark_of_one_leave_what_was_saved_of_others(world: World) -> None:
    await saved(world, "alice", 3)
    node = world.node("alice")
    everything, c0, c1, now = rows(node), node.dataset("c0"), node.dataset("c1"), node.clock.now()
    stranger = DatasetId.from_public_key(bytes(32))
    with node.home.database.write() as connection:
        Catalog(connection).add("new", stranger, now)
        records.put(connection, "publication", str(c0), b"{}", now)
    assert rows(node) == everything
    assert "new" in {view.name for view in node.parts.views.all()}
    with node.home.database.write() as connection:
        mirror_specs.keep(connection, mirror_specs.MirrorSpec(dataset=str(c0), name="c0", use="chain"), now)
    assert rows(node) == everything - {c0}
    node.parts.visibility.set_for_all([c1], VisibilityMark.PUBLISHED, now)
    assert rows(node) == everything - {c0, c1}
    node.home.chains.drop(c1)
    with node.home.database.write() as connection:
        records.put(connection, "accepted-policy", "any", b"{}", now)
    assert rows(node) == set()


async def test_a_view_rests_on_inputs_that_are_not_here_yet(world: World) -> None:
    await saved(world, "alice")
    node = world.node("alice")
    towns, cities = node.dataset("towns"), node.dataset("cities")
    node.home.chains.drop(cities)
    node.parts.views.refresher.refresh()
    assert towns in rows(node)
    block = MetadataBlock(
        system_time=Instant(0),
        prev_block_hash=None,
        sequence_number=0,
        event=Seed(dataset_id=cities, dataset_kind=DatasetKind.ROOT),
    )
    node.home.chains.commit([Append(dataset=cities, expected=None, blocks=[encode_block(block)])])
    assert towns not in rows(node)


async def test_a_view_is_not_saved_over_a_write_that_came_after_the_look(world: World) -> None:
    await saved(world, "alice", 1)
    node = world.node("alice")
    views, c0 = node.parts.views, node.dataset("c0")
    entry = next(entry for entry in views.cache.entries() if entry.id == c0)
    with node.home.database.write() as connection:
        connection.execute("UPDATE trust_chains SET data = data WHERE dataset = ?", (c0,))
    views.cache.look(entry)
    with node.home.database.write() as connection:
        connection.execute("UPDATE trust_chains SET data = 0, seal = NULL WHERE dataset = ?", (c0,))
    views.cache.save()
    assert c0 not in rows(node)
    views.refresher.refresh()
    assert c0 in rows(node)


async def test_damage_that_came_while_the_node_was_down_is_shown_when_the_chain_was_looked_at(world: World) -> None:
    await saved(world, "alice")

    def damage(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE blocks SET raw = zeroblob(length(raw))")

    in_the_file(world, "alice", damage)
    node = world.node("alice")
    node.parts.views.refresher.refresh()
    assert {view.state for view in node.parts.views.all()} == {"damaged"}
    assert rows(node) == set()


# When the background refresh of views works: with the clock of the test.


class Looks:
    """Views that are all outdated, and when each was looked at."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.is_loaded = False
        self.saved = trio.Event()

    def load(self) -> None:
        self.is_loaded = not self.at

    def list_outdated(self) -> Sequence[DatasetEntry]:
        return [DatasetEntry(name=DatasetName("d"), id=DatasetId.from_public_key(bytes(32)), created_at=Instant(0))]

    def look(self, entry: DatasetEntry) -> None:
        self.at.append(trio.from_thread.run_sync(trio.current_time))

    def save(self) -> None:
        trio.from_thread.run_sync(self.saved.set)


async def test_a_start_has_its_first_seconds_for_other_work(autojump_clock: MockClock) -> None:
    """Also writes that come in a burst are looked at once, after it."""
    views = Looks()
    refresher, life, begun = ViewRefresher(views), Life(), trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(refresher.loop.run, life)
        for _ in range(3):
            await trio.sleep(QUIET_SECONDS / 4)
            refresher.loop.poke()
            assert not views.at
        await views.saved.wait()
        nursery.cancel_scope.cancel()
    assert views.is_loaded
    (at,) = views.at
    assert begun + QUIET_SECONDS <= at < begun + 2 * QUIET_SECONDS  # the clock goes on while a thread loads


# What is done for all datasets at once costs next to nothing for each: counted in questions to the database.


async def fill(node: Node, count: int, start: int = 0) -> None:
    await node.apply("---\n".join(ROOT.replace("name: cities", f"name: c{each}") for each in range(start, count)))


async def started(world: World, name: str, count: int, questions: Questions) -> int:
    """Questions of a start over so many datasets, until all parts are made."""
    async with world.running(name) as node:
        await fill(node, count)
    with questions.during() as asked:
        world.node(name)
    return len(asked)


@pytest.mark.slow
async def test_a_start_asks_as_much_whatever_is_there(world: World, questions: Questions) -> None:
    few, many = await started(world, "few", 3, questions), await started(world, "many", 30, questions)
    assert many == few


async def test_a_dataset_is_found_by_its_did_without_reading_all_names(world: World, questions: Questions) -> None:
    async with world.running("alice") as node:
        await fill(node, 3)
    node = world.node("alice")
    wanted = node.dataset("c1")
    with node.home.catalog() as catalog, questions.during() as asked:
        assert catalog.name_of(wanted) == "c1"
        assert catalog.resolve(str(wanted)).name == "c1"
    assert asked, asked
    assert not any("WHERE kind = 'dataset' ORDER BY" in each for each in asked), asked


async def test_the_first_list_after_a_start_finds_what_was_looked_at_behind_it(
    world: World, questions: Questions
) -> None:
    async with world.running("alice") as node:
        await fill(node, 10)
    node = world.node("alice")
    assert "views" in {child.name for child in node.assembly.workers}
    node.parts.views.refresher.refresh()
    with questions.during() as asked:
        assert len(node.parts.views.all()) == 10
    assert asked == []


@pytest.mark.slow
async def test_listing_again_asks_nothing_and_looks_anew_at_what_moved(world: World, questions: Questions) -> None:
    world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
    async with world.running("alice") as node:
        await fill(node, 30)
    node = world.node("alice")
    views = node.parts.views
    first = views.all()
    with questions.during() as again:
        assert views.all() == first
    assert again == []
    entry = node.dataset("c7")
    with node.home.database.write() as connection:
        connection.execute("UPDATE trust_chains SET data = 0, seal = NULL WHERE dataset = ?", (entry,))
    with questions.during() as one:
        views.all()
    assert 0 < len(one) < 100, "one dataset, and not thirty"


@pytest.mark.slow
async def test_views_that_are_kept_are_those_that_a_new_look_gives(world: World) -> None:
    """Whatever happens in between: data, names, intents, policy, deletion, and days that pass."""
    world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
    async with world.running("alice") as node:
        await node.apply(BOTH)
        await fill(node, 4)
        views = node.parts.views

        def agree() -> None:
            for _ in range(2):
                writes = -1
                while writes != node.home.database.writes:  # the node's own rounds write in between
                    writes = node.home.database.writes
                    kept, new = views.all(), [views.cache.look(entry) for entry in views.cache.entries()]
                    views.cache.save()
                    restarted = DatasetViews(node.home, node.parts.evaluator, lambda _: "", lambda: None).all()
                assert kept == new == restarted

        agree()
        await node.pull()
        agree()
        await node.api.declarations.delete("Dataset", "c1")
        agree()
        node.clock.instant += 30 * 86400 * 10**9
        agree()
        assert {view.state for view in views.all()} == {"stale"}
        node.parts.heads.loop.touch_all()
        await node.heard("dataset.deleted")
        world.write("alice", "2.csv", "2024-01-02T00:00:00Z,Wien,2")
        await node.pull("cities")
        agree()
        await node.pull("towns")
        agree()
        node.parts.reload(model.Settings(policy=model.Policy(use="reproduced")))
        agree()


async def test_a_page_asks_as_much_whatever_is_on_it_and_nothing_until_something_is_written(
    world: World, questions: Questions
) -> None:
    """Resources, accounts that have them, and their states; sizes are summed before."""
    asked = []
    for name, count in (("few", 33), ("many", 42)):  # sizes of fewer are asked for one by one
        async with world.running(name) as node:
            await node.apply(ACCOUNT.format(name="alice", uid=ALICE))
            await node.apply(*(DATASET.format(name=f"c{number}", more=", account: alice") for number in range(count)))
        node = world.node(name)
        declarations = node.api.declarations

        async def listed(declarations: Any = declarations) -> Sequence[wire.ResourceManifest]:
            page = await declarations.page("Dataset", None, 100, None)
            return tuple(map(manifest_of, await declarations.stated(page.views)))

        node.parts.views.refresher.refresh()
        await listed()
        with node.home.database.write() as connection:
            connection.execute("UPDATE trust_chains SET seal = NULL WHERE FALSE")
        with questions.during() as again:
            shown = await listed()
        assert {each.headers["account"]["name"] for each in shown} == {"alice"}
        assert len({each.state(wire.DatasetState).head for each in shown}) == count
        with questions.during() as idle:
            assert await listed() == shown
        assert len(idle) < len(again)
        asked.append((len(again), len(idle)))
    assert asked[1] == asked[0]


async def test_who_derives_from_a_dataset_is_found_without_a_look_at_all(world: World, questions: Questions) -> None:
    """By what describes one, deletes one, and lets go of data that a dataset of one's own is derived from."""
    asked = []
    for name, count in (("few", 3), ("many", 30)):
        async with world.running(name) as node:
            await node.apply(BOTH)
            await fill(node, count)
            with pytest.raises(Refused, match="towns derives from cities"):
                await node.api.declarations.delete("Dataset", "cities")
        node = world.node(name)
        with node.home.catalog() as catalog:
            entry = catalog.resolve("cities")
        with questions.during() as during:
            assert node.parts.views.detail(entry).outputs == ("towns",)
            assert node.parts.views.readers.own(entry.id) == "towns"
            assert node.parts.views.readers.own(node.dataset("c1")) is None
        asked.append(len(during))
    assert asked[1] == asked[0]


async def test_a_chain_that_lost_blocks_while_it_was_read_is_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rewrite may come between reading the head and the block that it names."""
    async with world.running("alice") as node:
        await fill(node, 1)
    node = world.node("alice")
    (entry,) = node.parts.views.cache.entries()
    lacking = 1

    def load(chain: ChainReader) -> ChainState:
        nonlocal lacking
        lacking -= 1
        if lacking >= 0:
            raise NotFound("no block #2", rule="block-unknown")
        return load_state(chain)

    monkeypatch.setattr(views, "load_state", load)
    assert node.parts.views.cache.look(entry).blocks > 0
    lacking = 99
    with pytest.raises(NotFound):
        node.parts.views.cache.look(entry)


# Sizes of datasets: what the chain names, summed by and by, and never a part of it for all.


SOME = Multihash.sha3_256(b"some")


async def test_a_size_is_the_sum_of_what_its_blocks_name(world: World) -> None:
    async with world.running("node") as node:
        await node.apply(ROOT, DERIVED)
        (empty, _) = await node.dataset_views()
        assert empty.bytes == 0
        for year in (2021, 2022):
            world.write("node", f"{year}.csv", f"{year}-01-01T00:00:00Z,Graz,300000")
            await node.pull()
            for view in await node.dataset_views():
                blocks = await node.api.datasets.log(view.name, (), 100, None)
                assert view.bytes == sum(each.data_size or 0 for each in blocks) > 0
                detail = await node.api.datasets.describe(view.name)
                assert detail.dataset == view == await node.dataset_view(view.name)


async def test_a_long_chain_is_summed_beside_the_questions(world: World) -> None:
    """With so many blocks in each step; another history is summed from its beginning."""
    async with world.running("node") as node:
        await node.apply(ROOT)
        for year in (2021, 2022):
            world.write("node", f"{year}.csv", f"{year}-01-01T00:00:00Z,Graz,300000")
            await node.pull()
        dataset, size = node.dataset("cities"), node.size("cities")
        sizes, whole = DataSizes(node.home, at_once=0, step_blocks=2), DataSizes(node.home).of([node.dataset("cities")])
        assert not sizes.is_behind
        for _ in range(-(-size // 2)):
            assert sizes.of([dataset]) == {}, "no part of a size passes for all of it"
            assert sizes.is_behind
            sizes.step()
        assert not sizes.is_behind
        assert sizes.of([dataset]) == whole
        await node.done(node.api.rewriting.rewrite("cities", wire.RewriteRequest(action="reset", to=f"#{size - 2}")))
        shorter = DataSizes(node.home).of([dataset])
        assert shorter != whole
        assert sizes.of([dataset]) == {}
        while sizes.is_behind:
            sizes.step()
        assert sizes.of([dataset]) == shorter
        await node.api.declarations.delete("Dataset", "cities")
        assert sizes.of([dataset]) == {}
        assert not sizes.is_behind


async def test_one_step_sums_many_short_chains(world: World) -> None:
    """A list of a thousand datasets is followed by a few steps, not by a thousand."""
    many = 2 * data_sizes.STEP_BLOCKS // data_sizes.CHAIN_BLOCKS
    async with world.running("node") as node:
        await node.apply(*(ROOT.replace("cities", f"cities-{number}", 1) for number in range(many)))
        datasets = [node.dataset(f"cities-{number}") for number in range(many)]
        sizes = DataSizes(node.home, at_once=0)
        assert sizes.of(datasets) == {}
        for _ in range(2):
            assert sizes.is_behind
            sizes.step()
        assert not sizes.is_behind
        assert sizes.of(datasets) == dict.fromkeys(datasets, 0)


async def test_a_node_sums_a_long_chain_after_one_question(world: World) -> None:
    async with world.running("node") as node:
        await node.apply(ROOT)
        world.write("node", "2021.csv", "2021-01-01T00:00:00Z,Graz,300000")
        await node.pull()
        whole = DataSizes(node.home).of([node.dataset("cities")])
        node.api.datasets.states.sizes = DataSizes(node.home, at_once=0, step_blocks=2)
        assert (await node.dataset_view("cities")).bytes is None
        with trio.fail_after(PATIENCE):
            while (view := await node.dataset_view("cities")).bytes is None:  # noqa: ASYNC110  # in a thread
                await trio.sleep(PAUSE)
        assert view.bytes == whole[node.dataset("cities")]


def _raw(number: int, size: int) -> bytes:
    """A block that names a slice of ``size`` bytes; one without a slice for 7."""
    rows = OffsetInterval(start=number, end=number)
    data = DataSlice(logical_hash=SOME, physical_hash=SOME, offset_interval=rows, size=size)
    event = AddData(prev_offset=number, new_data=None if size == 7 else data, new_watermark=Instant(number))
    return encode_block(MetadataBlock(system_time=Instant(number), sequence_number=number, event=event)).raw


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from([0, 1, 7, 300_000, 1 << 40]), st.integers(1, 12)), max_size=8))
def test_blocks_of_one_shape_are_added_up_as_they_are_one_by_one(pieces: list[tuple[int, int]]) -> None:
    raws = [_raw(number, size) for number, size in enumerate(size for size, count in pieces for _ in range(count))]
    assert data_sizes.sum_sizes(raws) == (len(raws), sum(size * count for size, count in pieces if size != 7))


async def test_a_damaged_chain_keeps_no_other_from_being_summed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("node") as node:
        await node.apply(ROOT, ROOT.replace("cities", "towns", 1))
        world.write("node", "2021.csv", "2021-01-01T00:00:00Z,Graz,300000")
        await node.pull()
        damaged, other = node.dataset("cities"), node.dataset("towns")
        whole = DataSizes(node.home).of([damaged, other])
        read: list[int] = []

        def decode(raw: bytes) -> Any:
            block = decode_block(raw)
            read.append(block.sequence_number)
            if block.hash == last:
                raise Invalid("damaged", rule="block")
            return block

        last = node.home.chains.chain(damaged).head().hash
        monkeypatch.setattr(data_sizes, "decode_block", decode)
        sizes = DataSizes(node.home)
        assert sizes.of([damaged, other]) == {other: whole[other]}
        read.clear()
        assert sizes.of([damaged, other]) == {other: whole[other]}
        assert len(read) <= 1, "it goes on from where it was"
        monkeypatch.undo()
        assert sizes.of([damaged, other]) == whole
