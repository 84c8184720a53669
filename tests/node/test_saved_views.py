"""The first list after a start shows what was saved of each dataset, and nothing that is not so any more."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from chain.codec.blocks import encode_block
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import MetadataBlock
from chain.model.events import DatasetKind, Seed
from chain.store.base import Append
from config import model
from odfd.control import wire
from odfd.resources import records
from odfd.store import mirror_specs, saved_views
from odfd.store.catalog import Catalog
from odfd.store.directory import DATABASE
from odfd.store.visibility import VisibilityMark
from worlds.counted import Questions, questions
from worlds.manifests import BOTH
from worlds.node_world import ROOT, Node, World

__all__ = ["questions"]
DAYS = 86400 * 10**9


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


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
