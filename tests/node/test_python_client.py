"""The Python client against a real node over a socket: rows, cuts, pins, shards, appends, and new rows each once."""

from __future__ import annotations

import datetime
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from node.test_shards_of_peers import signed

from chain.errors import Refused as NodeRefused
from chain.instant import SECOND, parse
from chain.multihash import Multihash
from chain.store.objects import DiskObjects
from engines.query.reader import QueryProcesses
from odfd.cli.offline import answer_recheck
from odfd.control import wire
from odfd.queries import log_files
from odfd.store.read_holds import HistoryHeld
from odfd_client import (
    Appended,
    Client,
    Conflict,
    Dataset,
    Environment,
    HandedOver,
    HoldLost,
    Invalid,
    NotFound,
    Position,
    Progress,
    Refused,
    Snapshot,
    Switched,
    Unreachable,
    Update,
    appending,
    col,
    connect,
)
from worlds.depth import share
from worlds.eventually import became
from worlds.faults import breaks
from worlds.manifests import DERIVED, ROOT, in_shards
from worlds.node_world import Node, World, run_apart
from worlds.served_node import away, served

# The Python client against a real node over a socket: rows, cuts, pins, and new rows each once.


ROWS_A = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
ROWS_B = ("2024-01-03T00:00:00Z,Wels,62000", "2024-01-04T00:00:00Z,O'Hara,")


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a short name: a socket's may have 107 bytes."""
    return tmp_path_factory.mktemp("c")


async def filled(world: World, alice: Node) -> None:
    await alice.take_in(ROOT, files={"a.csv": ROWS_A})
    await alice.take_in(files={"b.csv": ROWS_B}, pulls=["cities"])


async def test_a_dataset_is_read_as_people_ask(world: World, folder: Path) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        async with served(alice, folder) as path:
            await away(lambda: read_as_people_ask(connect(path)))


def read_as_people_ask(c: Client) -> None:
    (info,) = c.datasets()
    cities = c.open("cities")
    assert (info.name, info.records, info.head) == ("cities", 4, cities.pin.block)
    assert cities.to_arrow()["city"].to_pylist() == ["Graz", "Linz", "Wels", "O'Hara"]
    assert c.open(info.id).current().select("city").limit(1).to_arrow().to_pydict() == {"city": ["Graz"]}
    others = cities.where((col("city") != "Graz") & (col("population") > 100_000)).select("city")
    assert others.to_arrow().to_pydict() == {"city": ["Linz"]}
    assert others.pin == cities.pin
    assert cities.as_at("2024-01-02").select("city").to_arrow().num_rows == 2
    assert cities.at(datetime.date(2999, 1, 1)).to_pandas()["city"].tolist()[0] == "Graz"
    assert c.sql("select ? + 1 n", [41]).to_arrow().to_pylist() == [{"n": 42}]
    asked_by_name = c.sql("select count(*) n from cities where city = $city", {"city": "Graz"})
    assert asked_by_name.to_arrow().to_pylist() == [{"n": 1}]
    assert (asked_by_name.pin, asked_by_name.standing) == (cities.pin, cities.standings[0].fact)
    with duckdb.connect() as connection:
        assert len(cities.duckdb(connection, "mine").fetchall()) == 4
        assert cities.current().duckdb(connection).count("*").fetchall() == [(4,)]
        assert connection.sql("select count(*) from cities").fetchall() == [(4,)]


async def test_a_log_is_read_from_its_slices(world: World, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows, types and pins as by a query; what was opened is there though the node has dropped it.

    The node looks each slice up once: a small one is read from the database and hashed each time.
    """
    looked_up: Counter[Multihash] = Counter()
    path_of = DiskObjects.path

    def counted(objects: DiskObjects, name: Multihash) -> Path:
        looked_up[name] += 1
        return path_of(objects, name)

    async with world.running("alice") as alice:
        await filled(world, alice)
        names = data_of(alice.home.chains.chain(alice.dataset("cities")))
        slices = list(map(alice.home.objects.path, names))
        async with served(alice, folder) as path:
            with monkeypatch.context() as patched:
                patched.setattr(DiskObjects, "path", counted)
                assert await away(lambda: connect(path).open("cities").files()) is not None
            with monkeypatch.context() as patched:
                patched.setattr(log_files, "MOST_SLICES", 1)
                await away(lambda: read_a_slice_at_a_time(connect(path), len(slices)))
            await away(lambda: read_from_slices(connect(path), slices))
    assert looked_up == Counter(names)


def read_a_slice_at_a_time(c: Client, slices: int) -> None:
    """A log of more slices than one request gets: those with some of its rows are given."""
    dataset = c.open("cities")
    assert dataset.files() is None
    listed = dataset.listed()
    assert listed is not None
    assert len(listed.spans) == slices > 1
    parts = [dataset.files(offsets=span) for span in listed.spans]
    rows = [each.table(()) for each in parts if each is not None]
    assert pa.concat_tables(rows).equals(c.sql("select * from cities").to_arrow())


def read_from_slices(c: Client, slices: list[Path]) -> None:
    asked, direct = c.sql("select * from cities").to_arrow(), c.open("cities")
    files = direct.files()
    assert files is not None
    assert direct.to_arrow().equals(asked)
    assert direct.pin == files.told.pins[0]
    assert direct.select("city").reader().read_all().equals(asked.select(["city"]))
    for other in (direct.current(), direct.limit(1), direct.as_at("2024-01-02"), direct.select("CITY")):
        assert other.files() is None
        assert other.to_arrow().num_rows
    assert files.last_offset == direct.last_offset() == asked.num_rows - 1
    listed, some = direct.listed(), direct.files(offsets=(0, 0))
    assert listed is not None
    assert (listed.schema, listed.spans, listed.paths) == (files.schema, files.spans, [])
    assert some is not None
    assert some.spans == [span for span in files.spans if span[0] == 0]
    for first, last in ((0, 0), (1, 2), (0, files.last_offset), (2, 99), (7, 3)):
        among = asked.filter((pc.field("offset") >= first) & (pc.field("offset") <= last))
        read = [row for batch in files.between(["city"], first, last) for row in batch.column("city").to_pylist()]
        assert read == among["city"].to_pylist()
    for each in slices:
        each.unlink()
    assert files.table(()).equals(asked)


def data_of(chain: Any) -> list[Any]:
    blocks = map(chain.block_at, range(chain.head().size))
    return [each.event.new_data.physical_hash for each in blocks if getattr(each.event, "new_data", None)]


async def test_an_answer_is_proven(world: World, folder: Path) -> None:
    """Its file is one that ``odfctl trust recheck`` reads, signed by the node, with the rows that came."""
    file = folder / "answer.json"
    async with world.running("alice") as alice:
        await filled(world, alice)
        async with served(alice, folder) as path:
            c = await away(lambda: connect(path))
            query = c.sql("select city from current.cities where population > 200000")
            proof = await away(query.prove)
            await away(lambda: proof.save(file))
        assert proof.rows.to_pydict() == {"city": ["Graz", "Linz"]}
        told = answer_recheck.read(str(file))
        assert told is not None
        assert told.rows.equals(proof.rows)
        assert told.signers == (alice.home.keys.node_key().did,)
        assert [pin.block for pin in told.predicate.pins] == [query.pin.block]
    with pytest.raises(Environment, match="cannot write"):
        proof.save(folder / "nowhere" / "answer.json")


async def test_rows_are_polars(world: World, folder: Path) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        async with served(alice, folder) as path:
            frame = await away(lambda: connect(path).open("cities").to_polars())
    assert frame["city"].to_list() == ["Graz", "Linz", "Wels", "O'Hara"]


async def test_what_is_wrong_is_an_error_of_its_family(world: World, folder: Path) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        async with served(alice, folder) as path:
            await away(lambda: mistaken(connect(path)))
        with pytest.raises(Unreachable, match="no node listens"):
            await away(lambda: connect(path))


def mistaken(c: Client) -> None:
    with pytest.raises(NotFound):
        c.open("citis")
    cities = c.open("cities")
    with pytest.raises(Invalid, match="citi"):
        cities.select("citi").to_arrow()
    with pytest.raises(Invalid, match="not a dataset name"):
        c.open('cities" where 1=0 --')
    with breaks("query-cut", NotFound):
        cities.at("1999-01-01").to_arrow()
    with pytest.raises(Refused, match="witnessed:3"):
        cities.require("witnessed:3").to_arrow()
    with pytest.raises(Refused, match="first"):
        c.sql("select first(city) from cities").prove()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "polars", None)
        with pytest.raises(Environment, match="polars is not installed"):
            cities.to_polars()
    with pytest.raises(Invalid, match="whole log"):
        cities.current().listen()
    with pytest.raises(Invalid, match="not the position"):
        cities.listen(after="{}")
    with pytest.raises(Invalid, match="0 datasets"):
        assert c.sql("select 1").pin
    with pytest.raises(Invalid, match="neither true nor false"):
        assert cities.where(0 < col("a") < 1)  # type: ignore[operator]
    with duckdb.connect() as connection:
        failing = c.sql("select error('no') from cities")
        with pytest.raises(Invalid):
            failing.duckdb(connection, "mine")
        assert connection.execute("show tables").fetchall() == []


async def test_one_object_is_one_cut(world: World, folder: Path) -> None:
    async with world.running("alice") as alice:
        await alice.take_in(ROOT, files={"a.csv": ROWS_A})
        async with served(alice, folder) as path:
            c = await away(lambda: connect(path))
            cities = await away(lambda: c.open("cities"))
            before = await away(cities.to_arrow)
            pin = cities.pin
            await alice.take_in(files={"b.csv": ROWS_B}, pulls=["cities"])
            assert (await away(cities.to_arrow)).equals(before)
            assert (await away(cities.where(col("offset") >= 0).to_arrow)).num_rows == 2
            assert (await away(lambda: c.open("cities").to_arrow())).num_rows == 4
            assert (await away(lambda: c.open("cities").pinned(pin).to_arrow())).equals(before)
            counted = c.sql("select count(*) n from cities", pins=[pin])
            assert (await away(counted.to_arrow)).to_pylist() == [{"n": 2}]


async def test_a_hold_keeps_rows_and_tells_when_it_is_lost(world: World, folder: Path) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        async with served(alice, folder) as path:

            def pass_by(seconds: int) -> None:
                world.clock.instant += seconds * SECOND

            await away(lambda: read_under_a_hold(connect(path), alice, pass_by))
            assert await alice.api.holds.list() == []
            await away(lambda: lose_a_hold(connect(path), alice))


def read_under_a_hold(c: Client, alice: Node, pass_by: Callable[[int], None]) -> None:
    before = c.open("cities").to_arrow()
    with c.hold("cities", seconds=60, note="a test") as held:
        (seen,) = trio.from_thread.run(alice.api.holds.list)
        assert (seen.id, seen.note, seen.pin.block) == (held.id, "a test", held.pin.block)
        compact = wire.RewriteRequest(action="compact")
        with pytest.raises(NodeRefused, match="held for a reader"):
            trio.from_thread.run(lambda: alice.done(alice.api.rewriting.rewrite("cities", compact)))
        assert held.dataset.to_arrow().equals(before)
        for _ in range(2):
            pass_by(50)
            held.renew()
            assert held.dataset.to_arrow().equals(before)
    with pytest.raises(Refused, match="not complete"):
        c.hold("cities", at="2100-01-01T00:00:00Z")


async def test_several_datasets_are_read_at_one_time(world: World, folder: Path) -> None:
    """What is committed to one of them later is in none; where one cannot be held, none is."""
    async with world.running("alice") as alice:
        await alice.take_in(ROOT, DERIVED, files={"a.csv": ROWS_A}, pulls=["cities"])
        await alice.pull("towns")
        world.clock.instant += 10 * SECOND
        for name in ("cities", "towns"):
            await alice.done(alice.api.flow.advance(name))
        await alice.take_in(files={"b.csv": ROWS_B}, pulls=["cities"])
        async with served(alice, folder) as path:
            await away(lambda: read_together(connect(path), alice))
            assert await alice.api.holds.list() == []


def read_together(c: Client, alice: Node) -> None:
    with c.at(None, "cities", "towns") as held:
        assert [each.time for each in trio.from_thread.run(alice.api.holds.list)] == [held.time] * 2
        assert [held[name].to_arrow().num_rows for name in ("cities", "towns")] == [2, 2]
        trio.from_thread.run(alice.pull, "towns")
        assert held["towns"].to_arrow().num_rows == 2
        assert (c.open("cities").to_arrow().num_rows, c.open("towns").to_arrow().num_rows) == (4, 4)
        with c.at(held.time, "towns") as again:
            assert again["towns"].to_arrow().equals(held["towns"].to_arrow())
        with pytest.raises(KeyError):
            held["other"]
    with pytest.raises(NotFound):
        c.at(held.time, "cities", "nothing")
    with pytest.raises(Refused, match="not complete"):
        c.at("2100-01-01T00:00:00Z", "cities", "towns")
    with pytest.raises(Invalid):
        c.at(None, "cities", "cities")


def lose_a_hold(c: Client, alice: Node) -> None:
    """At its end, when it is looked at, and when it is renewed."""
    held = c.hold("cities", seconds=60)
    trio.from_thread.run(alice.api.holds.release, held.id)
    with pytest.raises(HoldLost):
        held.release()
    held = c.hold("cities", seconds=60)
    trio.from_thread.run(alice.api.holds.release, held.id)
    for told in (held.renew, held.check, held.release, lambda: held.dataset):
        with pytest.raises(HoldLost):
            told()
    first, second = (c.hold("cities", owner="pipeline") for _ in range(2))
    with pytest.raises(HoldLost):
        first.renew()
    with pytest.raises(Refused, match="not complete yet"):
        second.move("2100-01-01")
    second.release()


def cities_of(updates: list[Update]) -> list[str]:
    return [city for update in updates for city in update.batch.column("city").to_pylist()]


async def test_rows_come_once_from_a_saved_position_on(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a where they come from the slices, a few at a time, and no query process is started for them."""
    monkeypatch.setattr("odfd.queries.log_files.MOST_SLICES", 1)
    begun: list[object] = []
    one_process = QueryProcesses.one
    monkeypatch.setattr(QueryProcesses, "one", lambda self: begun.append(self) or one_process(self))
    async with world.running("alice") as alice:
        await alice.take_in(ROOT, files={"a.csv": ROWS_A})
        async with served(alice, folder) as path:
            c = await away(lambda: connect(path))
            cities = (await away(lambda: c.open("cities"))).select("city")
            first = await away(lambda: list(cities.listen(follow=False)))
            assert cities_of(first) == ["Graz", "Linz"]
            assert first[0].batch.schema.names == ["city"]
            saved = str(first[-1].position)
            assert Position.parse(saved) == first[-1].position
            assert await away(lambda: list(cities.listen(saved, follow=False))) == []

            updates = cities.listen(saved, seconds=1e6)
            listening = threading.Event()
            waiting: list[Update] = []

            def one() -> None:
                listening.set()
                waiting.append(next(updates))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(away, one)
                await trio.to_thread.run_sync(listening.wait)
                await alice.take_in(files={"b.csv": ROWS_B}, pulls=["cities"])
            assert cities_of(waiting) == ["Wels", "O'Hara"]
            await away(updates.close)
            every = [cities_of([each]) for each in await away(lambda: list(cities.listen(follow=False)))]
            assert every == [["Graz", "Linz"], ["Wels", "O'Hara"]]
            assert not begun
            again = await away(lambda: list(cities.where(col("city") == "Wels").listen(saved, follow=False)))
            assert cities_of(again) == ["Wels"]
            lie = Position(first[0].position.id, 1, "f1620" + "0" * 64, first[0].position.sequence_number)
            with breaks("listen-rewritten", NotFound):
                await away(lambda: list(cities.listen(lie, follow=False)))


async def test_a_subscription_begins_with_what_holds(world: World, folder: Path) -> None:
    """The snapshot and the differences after it are what holds in the end, whatever came between them."""
    async with world.running("alice") as alice:
        await filled(world, alice)
        async with served(alice, folder) as path:
            cities = await away(lambda: connect(path).open("cities"))
            others = cities.where(col("city") != "Linz")
            updates = others.subscribe(follow=False)
            first = await away(lambda: next(updates))
            assert isinstance(first, Snapshot)
            assert [each.pin.block for each in await alice.api.holds.list("cities")] == [first.position.block]
            await alice.take_in(
                files={"c.csv": ["2024-01-05T00:00:00Z,Ried,12000", "2024-01-06T00:00:00Z,Linz,1"]}, pulls=["cities"]
            )
            held = await away(lambda: first.rows.to_arrow().column("city").to_pylist())
            assert held == ["Graz", "Wels", "O'Hara"], "not what came after it"
            rest = await away(lambda: list(updates))
            assert cities_of(rest) == ["Ried"]
            assert not await alice.api.holds.list("cities")
            saved = str(rest[-1].position)
            assert await away(lambda: list(others.subscribe(saved, follow=False))) == []
            with pytest.raises(Invalid, match="follows the whole log"):
                cities.limit(1).subscribe()


async def test_who_listens_is_told_of_a_handover_after_all_rows(world: World, folder: Path) -> None:
    """Neither goes it on in silence with what gets no rows, nor from a position of another rendition."""
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        await alice.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
        await alice.keep_raw("cities")
        await alice.take_in(files={"a.csv": ROWS_A}, pulls=["cities"])
        async with served(alice, folder) as path:
            c = await away(lambda: connect(path))
            cities = await away(lambda: c.open("cities"))
            updates = cities.listen(seconds=1e6)
            first = await away(lambda: next(updates))
            await alice.done(alice.api.renditions.create("cities", wire.RenditionRequest()))
            ends: list[HandedOver] = []

            def rest() -> None:
                with pytest.raises(HandedOver) as fault:
                    next(updates)
                ends.append(fault.value)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(away, rest)
                await alice.done(alice.api.renditions.hand_over("cities", 1, wire.HandoverRequest()))
            assert ends[0].rule == "listen-handover"
            with pytest.raises(HandedOver):
                await away(lambda: list(cities.listen(first.position, follow=False)))
            again = await away(lambda: list(c.open("cities").listen(follow=False)))
            assert cities_of(again) == cities_of([first])


def applied(state: Counter[Any], item: Any) -> None:
    """What an item of a listener does to the rows that its reader has."""
    rows = [] if isinstance(item, Switched) and item.changes is None else None
    if rows is None:
        rows = (item.changes.to_arrow() if isinstance(item, Switched) else item.batch).to_pylist()
    for row in rows:
        state[row["city"], row["population"]] += 1 if row["op"] in (0, 3) else -1


async def test_a_reader_crosses_handovers_by_their_exact_differences(world: World, folder: Path) -> None:
    """From raw, with other rows; from a snapshot, with none; back again; live, and from a position of long ago."""
    ledger = ROOT.replace("{kind: Append}", "{kind: Ledger, primaryKey: [city]}")
    async with world.running("alice") as alice:

        async def made(origin: str, number: int) -> None:
            request = wire.RenditionRequest(origin=origin)  # type: ignore[arg-type]
            await alice.done(alice.api.renditions.create("cities", request))
            await alice.done(alice.api.renditions.hand_over("cities", number, wire.HandoverRequest()))

        async def brought(day: int, *rows: str) -> None:
            await alice.take_in(
                files={f"d{day}.csv": (f"2024-01-0{day}T00:00:00Z,{row}" for row in rows)}, pulls=["cities"]
            )

        await alice.apply(ledger)
        await alice.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
        await alice.keep_raw("cities")
        await brought(1, "Graz,1", "Linz,2")
        await brought(2, "Graz,3")
        await brought(3, "Wels,4")
        async with served(alice, folder) as path:
            cities = await away(lambda: connect(path).open("cities"))
            has: Counter[Any] = Counter()
            first = await away(lambda: list(cities.cross(follow=False)))
            for item in first:
                applied(has, item)
            saved = str(first[-1].position)
            live = cities.cross(saved, seconds=1e6)
            await alice.apply(ROOT)
            seen: list[Any] = []

            def heard() -> None:
                seen.append(next(live))
                if isinstance(seen[-1], Switched):
                    applied(has, seen[-1])

            async with trio.open_nursery() as nursery:
                nursery.start_soon(away, heard)
                await made("raw", 1)
            assert isinstance(seen[0], Switched)
            assert seen[0].changes is not None
            assert +has == Counter({("Graz", 1): 1, ("Graz", 3): 1, ("Linz", 2): 1, ("Wels", 4): 1})
            await away(live.close)
            await made("snapshot", 2)
            await brought(4, "Steyr,5")
            await alice.done(alice.api.renditions.hand_over("cities", 0, wire.HandoverRequest()))
            await brought(5, "Krems,6")
            late = Counter(dict.fromkeys((("Graz", 1), ("Linz", 2), ("Wels", 4)), 1))
            for start, state in ((str(seen[0].position), has), (saved, late)):
                items = await away(lambda each=start: list(cities.cross(each, follow=False)))
                for item in items:
                    await away(lambda one=item, to=state: applied(to, one))
                rows = await away(lambda: connect(path).open("cities").current().to_arrow().to_pylist())
                assert +state == Counter((row["city"], row["population"]) for row in rows)
                if state is has:
                    told = [each.changes is None for each in items if isinstance(each, Switched)]
                    assert told == [True, False], "a snapshot has no difference"
            assert not await alice.api.holds.list()


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_reader_learns_that_time_passed_without_rows(
    world: World, folder: Path, tmp_path_factory: pytest.TempPathFactory, shards: int
) -> None:
    """At the owner and at a mirror; what was delivered by then is all of earlier times, over a handover too."""
    root = ROOT if shards == 1 else in_shards(ROOT)
    there = tmp_path_factory.mktemp("b")
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.take_in(root, files={"a.csv": ROWS_A}, pulls=["cities"])
        await alice.publish("cities")
        await signed(alice)
        await bob.mirror(alice.dataset("cities"), "cities")
        ids = alice.home.shards_of(alice.dataset("cities"))
        async with served(alice, folder) as path, served(bob, there) as other:
            for node, at in ((alice, path), (bob, other)):
                if node is bob:  # heads come one by one; the test is about what comes after these
                    await bob.pull("cities")
                    await became(
                        lambda: (
                            [bob.home.chains.upper(each) for each in ids]
                            == [alice.home.chains.upper(each) for each in ids]
                        )
                    )

                async def frontier(of: Any = node) -> str:
                    return str((await of.dataset_view("cities")).frontiers.upper)

                cities = await away(lambda at=at: connect(at).open("cities"))
                first = await away(lambda of=cities: list(of.cross(follow=False, progress=True)))
                assert isinstance(first[-1], Progress)
                assert not any(isinstance(each, Progress) for each in first[:-1])
                assert (first[-1].upper, first[-1].position) == (await frontier(), first[-2].position)
                assert (await away(lambda at=at: connect(at).datasets()))[0].upper == first[-1].upper
                saved = str(first[-1].position)
                assert await away(lambda of=cities, at=saved: list(of.cross(at, follow=False))) == []
                live = cities.cross(saved, seconds=1e6, progress=True)
                assert await away(lambda it=live: next(it)) == first[-1]
                seen: list[Any] = []
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(away, lambda it=live, to=seen: to.append(next(it)))
                    world.clock.instant += 60 * SECOND
                    await alice.done(alice.api.flow.advance("cities"))
                    if node is bob:
                        await bob.pull("cities")
                assert (seen[0].upper, seen[0].position) == (await frontier(), first[-1].position)
                assert parse(seen[0].upper) > parse(str(first[-1].upper))
                await away(live.close)
            cities = await away(lambda: connect(path).open("cities"))
            await alice.done(alice.api.renditions.create("cities", wire.RenditionRequest(origin="snapshot")))
            await alice.done(alice.api.renditions.hand_over("cities", 1, wire.HandoverRequest()))
            items = await away(lambda: list(cities.cross(saved, follow=False, progress=True)))
            assert [type(each) for each in items] == [Switched, Progress], "nothing is promised of the old rendition"
            assert parse(items[1].upper) > parse(items[0].time)
            with pytest.raises(Invalid, match="requirement"):
                cities.require("data").cross(progress=True)


async def test_a_node_that_goes_is_told_to_who_reads_and_who_listens(world: World, folder: Path) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        async with served(alice, folder) as path:
            c = await away(lambda: connect(path))
            updates = await away(lambda: c.open("cities").listen(seconds=1e6))
            assert len(cities_of([await away(lambda: next(updates))])) > 0
            many = c.sql("select a.range from range(1000000) a, cities").reader
            reader: pa.RecordBatchReader = await away(many)
            await away(reader.read_next_batch)
        with pytest.raises(Unreachable, match="went away"):
            await away(lambda: sum(batch.num_rows for batch in reader))
        with pytest.raises(Unreachable):
            await away(lambda: list(updates))


# The Python client reads, holds and follows a collection of several shards by its name as it does one chain.


LEDGER = "{kind: Ledger, primaryKey: [event_time, city]}"
CITIES = ("Graz", "Linz", "Wels", "Enns", "Melk", "Krems", "Steyr", "Bregenz", "Villach")


async def brought(world: World, node: Node, day: int, *cities: str) -> None:
    world.write("alice", f"d{day}.csv", *(f"2024-01-{day:02}T00:00:00Z,{city},{day}" for city in cities))
    await node.pull("cities")


async def hand_over_to_shards(
    node: Node, number: int, shards: int, origin: Literal["snapshot", "raw"] = "snapshot"
) -> None:
    request = wire.RenditionRequest(origin=origin, shards=shards, by=("city",) if shards > 1 else ())
    await node.done(node.api.renditions.create("cities", request))
    await node.done(node.api.renditions.hand_over("cities", number, wire.HandoverRequest()))


async def sharded(world: World, node: Node) -> None:
    await node.apply(ROOT.replace("{kind: Append}", LEDGER))
    await node.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
    await brought(world, node, 1, *CITIES[:5])
    await hand_over_to_shards(node, 1, 3)


def names(items: Any) -> list[str]:
    return [name for item in items for name in item.batch.column("city").to_pylist()]


async def test_all_shards_are_followed_as_one(world: World, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row once from any saved position on; the last of a cut says that it is complete, in every shard.

    The rows come from the slices: no query process is started for them.
    """

    def none(_: object) -> None:
        raise AssertionError("a query process was started")

    monkeypatch.setattr(QueryProcesses, "one", none)
    async with world.running("alice") as alice:
        await sharded(world, alice)
        async with served(alice, folder) as path:
            cities = await away(lambda: connect(path).open("cities"))
            found = await away(lambda: list(cities.listen(follow=False)))
            assert sorted(names(found)) == sorted(CITIES[:5])
            assert [each.complete for each in found] == [False] * (len(found) - 1) + [True]
            assert len(found) > 1
            for place, each in enumerate(found):
                start = Position.parse(str(each.position))
                rest = await away(lambda start=start: list(cities.listen(str(start), follow=False)))
                assert sorted(names(rest)) == sorted(names(found[place + 1 :]))
            live, heard = cities.listen(found[-1].position, seconds=1e6), []
            listening = threading.Event()

            def hear() -> None:
                listening.set()
                while not heard or not heard[-1].complete:
                    heard.append(next(live))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(away, hear)
                await trio.to_thread.run_sync(listening.wait)
                await brought(world, alice, 2, *CITIES[5:])
            await away(live.close)
            assert sorted(names(heard)) == sorted(CITIES[5:])
            one = await away(lambda: connect(path).open(found[0].position.id))
            with pytest.raises(NotFound, match="not of did:odf"):
                await away(lambda: list(one.listen(found[0].position, follow=False)))


async def test_a_hold_and_a_subscription_are_of_all_shards_at_one_time(world: World, folder: Path) -> None:
    async with world.running("alice") as alice:
        await sharded(world, alice)
        async with served(alice, folder) as path:
            c = await away(lambda: connect(path))
            items = await away(lambda: c.open("cities").subscribe(follow=False))
            snapshot = await away(lambda: next(items))
            assert isinstance(snapshot, Snapshot)
            await brought(world, alice, 2, *CITIES[5:])
            rows = await away(lambda: snapshot.rows.to_arrow()["city"].to_pylist())
            assert sorted(rows) == sorted(CITIES[:5])
            with pytest.raises(HistoryHeld):
                await alice.api.declarations.delete("Dataset", "cities")
            later = await away(lambda: list(items))
            assert sorted(names(later)) == sorted(CITIES[5:])
            assert not await alice.api.holds.list()
            together = await away(lambda: c.at(None, "cities"))
            with together:
                await brought(world, alice, 3, "Graz")
                (hold,) = await alice.api.holds.list()
                assert len({pin.id for pin in hold.shards}) == 3
                assert await away(lambda: together["cities"].current().to_arrow().num_rows) == 9
                await away(lambda: together.__exit__(None, None, None))


def apply_to_cities(state: Counter[str], item: Update | Switched) -> None:
    if isinstance(item, Switched):
        rows = [] if item.changes is None else item.changes.to_arrow().to_pylist()
    else:
        rows = item.batch.to_pylist()
    for row in rows:
        state[row["city"]] += 1 if row["op"] in (0, 3) else -1


@pytest.mark.parametrize("origin", ["snapshot", "raw"])
async def test_a_reader_crosses_from_one_chain_to_shards_and_back(
    world: World, folder: Path, origin: Literal["snapshot", "raw"]
) -> None:
    """From each position that was ever saved, the reader has in the end what the collection contains.

    Decoded from raw, every other rendition has other rows, as another decoder makes them.
    """
    async with world.running("alice") as alice:
        await alice.apply(ROOT.replace("{kind: Append}", LEDGER))
        await alice.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
        await alice.keep_raw("cities")
        await brought(world, alice, 1, *CITIES[:2])
        async with served(alice, folder) as path:
            c = await away(lambda: connect(path))
            cities = await away(lambda: c.open("cities"))
            has: Counter[str] = Counter()
            saved: list[tuple[str | None, Counter[str]]] = [(None, Counter())]

            async def read(start: str | None, state: Counter[str]) -> str | None:
                end = start
                for item in await away(lambda: list(cities.cross(start, follow=False))):
                    await away(lambda item=item: apply_to_cities(state, item))
                    end = str(item.position)
                return end

            at: str | None = None
            for number, (shards, day) in enumerate(((3, 2), (5, 3), (1, 4)), start=1):
                at = await read(at, has)
                saved.append((at, has.copy()))
                await brought(world, alice, day, CITIES[day], "Graz")
                if origin == "raw":
                    merge = "{kind: Append}" if number % 2 else "{kind: Ledger, primaryKey: [city]}"
                    await alice.apply(ROOT.replace("{kind: Append}", merge))
                await hand_over_to_shards(alice, number, shards, origin)
            await brought(world, alice, 5, *CITIES[5:])
            rows = Counter(await away(lambda: c.open("cities").current().to_arrow()["city"].to_pylist()))
            for start, state in saved:
                await read(start, state)
                assert +state == rows
            with pytest.raises(HandedOver):
                await away(lambda: list(cities.listen(saved[2][0], follow=False)))
            assert not await alice.api.holds.list()


# The Python client appends rows: each append once by its id, and after a block that it names.


DATASET = """$schema: Dataset
headers: {name: readings}
spec:
  kind: Root
  metadata:
  - kind: AddPushSource
    sourceName: gate
    read: {kind: Parquet}
    merge: {kind: Append}
"""
EMPTY = "$schema: Dataset\nheaders: {name: empty}\nspec: {kind: Root, metadata: []}\n"


def rows(*numbers: int) -> pa.Table:
    times = pa.array([datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)] * len(numbers), pa.timestamp("ms", "UTC"))
    return pa.table({"event_time": times, "n": pa.array(numbers, pa.int64())})


def numbers(dataset: Dataset) -> list[int]:
    return [int(each) for each in dataset.select("n").to_arrow()["n"].to_pylist()]


async def test_an_append_counts_once_by_its_id(world: World, folder: Path) -> None:
    async with world.running("alice") as alice:
        await alice.apply(DATASET)
        async with served(alice, folder) as path:
            await away(lambda: append_by_ids(connect(path)))
    async with world.running("alice") as alice, served(alice, folder) as path:
        await away(lambda: repeat_after_a_restart(connect(path)))


def append_by_ids(c: Client) -> None:
    assert c.commit_point("readings").last_id is None
    first = c.append("readings", rows(1, 2), id="0-2")
    assert (first.id, first.records) == ("0-2", 2)
    again = c.append("readings", rows(1, 2), id="0-2")
    assert (again.block, again.records) == (first.block, 0)
    assert "before" in again.message
    with breaks("push-id", Refused):
        c.append("readings", rows(3), id="0-2")
    point = c.commit_point("readings")
    assert (point.block, point.last_id) == (first.block, "0-2")
    assert c.append("readings", rows(7)).records == c.append("readings", rows(7)).records == 1, "each call counts"
    assert numbers(c.open("readings")) == [1, 2, 7, 7]


def repeat_after_a_restart(c: Client) -> None:
    assert c.append("readings", rows(1, 2), id="0-2").records == 0
    batch = rows(3).to_batches()[0]
    assert c.append("readings", batch, id="2-3").records == 1
    assert c.append("readings", pa.RecordBatchReader.from_batches(batch.schema, [batch, batch])).records == 2
    assert numbers(c.open("readings")) == [1, 2, 7, 7, 3, 3, 3]


async def test_a_lost_answer_is_asked_for_again(world: World, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice") as alice:
        await alice.apply(DATASET)
        async with served(alice, folder) as path:
            with monkeypatch.context() as patched:
                patched.setattr(appending, "_result", lost)
                with pytest.raises(Unreachable):
                    await away(lambda: connect(path).append("readings", rows(1), id="a"))
            assert (await away(lambda: connect(path).append("readings", rows(1), id="a"))).id == "a"
            assert await away(lambda: numbers(connect(path).open("readings"))) == [1]


def lost(*_: object) -> Any:
    raise Unreachable("cut off", rule="connection")


async def test_what_must_follow_a_block_is_refused_after_another(world: World, folder: Path) -> None:
    async with world.running("alice") as alice:
        await alice.apply(DATASET)
        async with served(alice, folder) as path:
            await away(lambda: follow_blocks(connect(path)))
            await away(lambda: race(path))


def follow_blocks(c: Client) -> None:
    start = c.commit_point("readings")
    first = c.append("readings", rows(1), id="a", after=start)
    with breaks("append-after", Conflict):
        c.append("readings", rows(2), id="b", after=start)
    assert numbers(c.open("readings")) == [1]
    assert c.append("readings", rows(1), id="a", after=start).block == first.block, "what was appended stays appended"
    second = c.append("readings", rows(2), id="b", after=first)
    assert c.commit_point("readings").block == second.block


def race(path: Path) -> None:
    """Programs that count up from the last row: each number is there once, as none builds on what it has not seen."""

    def count(name: str) -> None:
        c = connect(path)
        for turn in range(4):
            while True:
                point = c.commit_point("readings")
                following = numbers(c.open("readings").at_block(point.block))[-1] + 1
                try:
                    c.append("readings", rows(following), id=f"{name}-{turn}", after=point)
                except Conflict:
                    continue
                break

    threads = [threading.Thread(target=count, args=(name,)) for name in "xy"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert numbers(connect(path).open("readings")) == list(range(1, 11))


TURNS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 6)),
    st.tuples(st.just("late"), st.integers(0, 6)),
    st.tuples(st.just("over"), st.integers(1, 3)),
    st.tuples(st.just("back"), st.integers(0, 3)),
    st.tuples(st.just("restart"), st.just(0)),
)


@pytest.mark.slow
@settings(max_examples=share(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(TURNS, min_size=2, max_size=9))
@example(
    [("over", 2), ("append", 1), ("append", 2), ("append", 3), ("append", 1), ("late", 4), ("over", 1), ("append", 3)]
)
@example([("append", 5), ("append", 6), ("append", 1), ("over", 3), ("restart", 0), ("append", 6), ("back", 0)])
def test_appends_to_any_shards_count_once_over_handovers(
    tmp_path: Path, folder: Path, turns: list[tuple[str, int]]
) -> None:
    """By id, after the commit point of all shards, and never after another block."""
    run_apart(tmp_path, play, Path(tempfile.mkdtemp(dir=folder)), turns)


async def play(world: World, folder: Path, turns: list[tuple[str, int]]) -> None:
    known, left = Appends(), list(turns)
    while True:
        async with world.running("alice") as alice:
            if not known.numbers:
                await alice.apply(DATASET)
                await alice.api.visibility.unpublish(wire.VisibilityRequest(refs=("readings",)))
            async with served(alice, folder) as path:
                if not known.numbers:
                    await away(lambda: known.append(connect(path), 0))
                while left:
                    kind, value = left.pop(0)
                    if kind == "restart":
                        break
                    if kind in ("append", "late"):
                        await away(partial(play_one, known, kind, path, value))
                    else:
                        await change_rendition(alice, kind, value)
                    await away(lambda: known.check(connect(path)))
                if not left:
                    return


def play_one(known: Appends, kind: str, path: Path, value: int) -> None:
    getattr(known, kind)(connect(path), value)


async def change_rendition(node: Node, kind: str, value: int) -> None:
    api = node.api.renditions
    if kind == "over":
        wanted = wire.RenditionRequest(origin="snapshot", shards=value, by=("n",) if value > 1 else ())
        number = (await node.done(api.create("readings", wanted))).number
    else:
        former = [each.number for each in await api.list("readings") if each.state == "Superseded"]
        if not former:
            return
        number = former[value % len(former)]
    await node.done(api.hand_over("readings", number, wire.HandoverRequest()))


class Appends:
    """What was appended to ``readings``, with the ids of appends in order."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.last = ""

    def append(self, c: Client, number: int) -> None:
        """Appends one row under its own id; what is repeated is there already."""
        before = c.commit_point("readings")
        done = c.append("readings", rows(number), id=f"{number}", after=before)
        assert done.records == int(number not in self.numbers)
        if number not in self.numbers:
            self.numbers.append(number)
            self.last = f"{number}"
            assert c.commit_point("readings").block == done.block != before.block
        again = c.append("readings", rows(number), id=f"{number}")
        assert (again.records, again.block) == (0, done.block)

    def late(self, c: Client, number: int) -> None:
        """What would not follow the last block of all shards is not taken in, whatever shard its row is for."""
        point, other = c.commit_point("readings"), 100 + len(self.numbers)
        self.append(c, other)
        if number not in self.numbers:
            with breaks("append-after", Conflict):
                c.append("readings", rows(number), id=f"{number}", after=point)

    def check(self, c: Client) -> None:
        assert sorted(numbers(c.open("readings"))) == sorted(self.numbers)
        assert c.commit_point("readings").last_id == self.last


async def test_what_cannot_be_appended_is_refused_and_nothing_is_written(world: World, folder: Path) -> None:
    async with world.running("alice") as alice:
        await alice.apply(DATASET)
        await alice.apply(EMPTY)
        await alice.apply(ROOT)
        async with served(alice, folder) as path:
            c = await away(lambda: connect(path))
            assert (await away(lambda: c.append("empty", rows(1)))).records == 1, "a source for Parquet is made"
            for given, family, rule in (
                (("none", rows(1)), NotFound, None),
                (("readings", [1, 2]), Invalid, "append-rows"),
                (("readings", rows(1), "x" * 300), Refused, "push-id"),
                (("readings", rows(1), "a", Appended("", "f1620" + "0" * 64, 0, "")), Conflict, "append-after"),
                (("cities", rows(1)), Refused, "push-source"),
            ):
                with pytest.raises(family) as refused:
                    await away(lambda given=given: appending.append(c._transport, *(given + (None,) * 4)[:5]))
                assert rule in (None, refused.value.rule), refused.value
            assert alice.size("readings") == 2
