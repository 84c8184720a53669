"""Differences of handovers that are computed once: readers get the same rows as from a comparison of all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from chain.errors import Refused
from chain.ids import DatasetId
from chain.multihash import Multihash
from odfd.control import wire
from odfd.errors import Bug
from odfd.services.renditions.differences import check_sql, difference_sql
from odfd_client import Switched, col, connect
from odfd_client.handovers import Ending, _changes, _kept_changes
from odfd_client.relations import Selection
from odfd_client.values import Pin
from worlds.manifests import ROOT
from worlds.node_world import Node, World
from worlds.served_node import away, served

LEDGER = "{kind: Ledger, primaryKey: [city]}"
OVER = wire.HandoverRequest(difference=True, id="over")
ROWS = some.lists(some.tuples(some.none() | some.sampled_from("abc"), some.none() | some.integers(0, 2)), max_size=8)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a short name: a socket's may have 107 bytes."""
    return tmp_path_factory.mktemp("c")


def pin_of(name: str) -> wire.Pin:
    dataset = DatasetId.from_public_key(name.encode() * 32)
    return wire.Pin(name=name, id=str(dataset), block=str(Multihash.sha3_256(b"")), sequence_number=1)


READING = wire.HandoverReading(
    time="", old=pin_of("o"), new=pin_of("n"), new_shards=(pin_of("n"), pin_of("m")), columns=("key", "value")
)
ENDING = Ending(
    "", (Pin("old0", "old0", "", 0),), (Pin("new0", "new0", "", 0), Pin("new1", "new1", "", 0)), False,
    ("key", "value"), Pin("kept", "kept", "", 0),
)  # fmt: skip


def as_added(rows: list[tuple[Any, ...]]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for op, *values in rows:
        found[tuple(values)] += -1 if op == 1 else 1
    return found


@pytest.fixture(scope="module")
def base() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as made:
        made.execute("CREATE SCHEMA current")
        for name in ("old0", "new0", "new1"):
            made.execute(f"CREATE TABLE current.{name} (key VARCHAR, value INT)")
        made.execute("CREATE TABLE kept (op INT, key VARCHAR, value INT)")
        yield made


def filled(base: duckdb.DuckDBPyConnection, table: str, rows: list[Any]) -> None:
    base.execute(f"DELETE FROM {table}")
    if rows:
        base.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows)


@settings(max_examples=40)
@given(old=ROWS, new=ROWS, more=ROWS, columns=some.sampled_from([("key", "value"), ("key",)]), asked=some.booleans())
def test_a_kept_difference_is_the_computed_one(
    base: duckdb.DuckDBPyConnection,
    old: list[Any],
    new: list[Any],
    more: list[Any],
    columns: tuple[str, ...],
    asked: bool,
) -> None:
    """Rows that are in both more than once, nulls, chosen columns and rows; and no other rows pass for it."""
    for name, rows in (("old0", old), ("new0", new), ("new1", more)):
        filled(base, f"current.{name}", rows)
    base.execute("DELETE FROM kept")
    base.execute(f"INSERT INTO kept {difference_sql(('key', 'value'), READING)}")
    kept = as_added(base.execute("SELECT op, key, value FROM kept").fetchall())
    had = Counter(old)
    had.update(kept)
    assert +had == Counter([*new, *more])
    assert not -had
    assert base.execute(check_sql(("key", "value"), READING)).fetchone() == (0,)
    where = col("value") == 1 if asked else None
    selection = Selection("d", columns=columns, where=where)
    answers = [
        as_added(base.execute(sql, parameters or None).fetchall())
        for sql, parameters in (_changes(selection, ENDING.old, ENDING), _kept_changes(selection, ENDING))
    ]
    assert answers[0] == answers[1]
    base.execute("INSERT INTO kept VALUES (0, 'a', 1)")
    assert base.execute(check_sql(("key", "value"), READING)).fetchone() == (1,)


async def brought(world: World, node: Node, day: int, *rows: str) -> None:
    world.write("alice", f"d{day}.csv", *(f"2024-01-0{day}T00:00:00Z,{row}" for row in rows))
    await node.pull("cities")


async def begun(world: World, node: Node) -> None:
    """A ledger, and a rendition that is decoded without one: it has a row more for each repetition of a key."""
    await node.apply(ROOT.replace("{kind: Append}", LEDGER))
    await node.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
    await node.keep_raw("cities")
    await brought(world, node, 1, "Graz,1", "Linz,2")
    await brought(world, node, 2, "Graz,3", "Graz,3", "Wels,4")
    await node.apply(ROOT)
    await node.done(node.api.renditions.create("cities", wire.RenditionRequest()))


def crossed(path: Path) -> tuple[Counter[Any], str]:
    """The rows of the handover, and the query for them."""
    (switched,) = [each for each in connect(path).open("cities.r0").cross(follow=False) if isinstance(each, Switched)]
    assert switched.changes is not None
    rows = switched.changes.to_arrow().select(["op", "city", "population"]).to_pylist()
    return as_added([tuple(row.values()) for row in rows]), switched.changes._statement[0]


async def test_readers_cross_by_the_kept_rows(world: World, folder: Path) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        await alice.done(alice.api.renditions.hand_over("cities", 1, OVER))
        reading = await alice.api.renditions.reading("cities.r0")
        assert reading.difference is not None
        assert reading.difference.name == "cities.h1"
        async with served(alice, folder) as path:
            kept, sql = await away(lambda: crossed(path))
            assert reading.difference.id in sql
            assert "current" not in sql
            await alice.api.declarations.delete("Dataset", "cities.h1", purge=True)
            computed, sql = await away(lambda: crossed(path))
            assert "current" in sql
        assert kept == computed == Counter({("Graz", 3): 2})


async def test_a_wrong_difference_is_refused_by_name_and_a_death_before_the_check_is_mended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(step: str) -> None:
        assert step != "difference-written"

    async with world.running("alice") as alice:
        await begun(world, alice)
        alice.api.renditions._effects.step = die
        with pytest.raises(Bug, match="AssertionError"):
            await alice.done(alice.api.renditions.hand_over("cities", 1, OVER))
        alice.api.renditions._effects.step = lambda _: None
        assert (await alice.api.renditions.reading("cities.r0")).difference is None, "it was not compared yet"
        await alice.done(alice.api.renditions.hand_over("cities", 1, OVER))
        assert (await alice.api.renditions.reading("cities.r0")).difference is not None
        wrong = "SELECT 0 AS op, event_time, city, population FROM current.new0"
        monkeypatch.setattr("odfd.services.renditions.differences.difference_sql", lambda *_: wrong)
        back = wire.HandoverRequest(difference=True, id="back")
        with pytest.raises(Refused, match=r"cities.h2 is not the difference of both renditions: \d+ rows"):
            await alice.done(alice.api.renditions.hand_over("cities", 0, back))
        assert (await alice.api.renditions.reading("cities.r1")).difference is None
        await alice.api.declarations.delete("Dataset", "cities.h2", purge=True)
        monkeypatch.undo()
        await alice.done(alice.api.renditions.hand_over("cities", 0, back))
        assert (await alice.api.renditions.reading("cities.r1")).difference is not None


async def test_equal_contents_need_none_and_other_columns_have_none(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        await alice.apply(ROOT.replace("population BIGINT", "population STRING"))
        await alice.done(alice.api.renditions.create("cities", wire.RenditionRequest(id="texts")))
        with pytest.raises(Refused, match="there is no difference of rows"):
            await alice.done(alice.api.renditions.hand_over("cities", 2, OVER))
        request = wire.RenditionRequest(origin="snapshot", id="more")
        await alice.done(alice.api.renditions.create("cities", request))
        await alice.done(alice.api.renditions.hand_over("cities", 3, OVER))
        reading = await alice.api.renditions.reading("cities.r0")
        assert (reading.equal, reading.difference) == (True, None)
