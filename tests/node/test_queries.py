"""Questions in SQL to a node: what is read, how it is cut, what is told beside it, and what is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import trio

from chain.errors import Environment, Fault, Invalid, NotFound, Refused
from chain.store.files import DAMAGED
from engines.query.frames import END, HEAD, ROWS, AnswerFrameReader
from odfd.cli.sql.query import Shown
from odfd.control import wire
from odfd.runtime.supervision import Life
from odfd.services.execution.feature import run_readers
from odfd.store.slice_files import MISSING
from worlds.eventually import PATIENCE, became
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World

ROWS_A = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
ROWS_B = ("2024-01-03T00:00:00Z,Wels,62000",)


AIRLINES = Path(__file__).parents[1] / "golden" / "kamu" / "airlines"


async def filled(world: World, alice: Node) -> None:
    """Two files, two blocks of data; towns repeats cities."""
    world.write("alice", "a.csv", *ROWS_A)
    await alice.apply(ROOT, DERIVED)
    await alice.pull()
    world.write("alice", "b.csv", *ROWS_B)
    for name in ("cities", "towns"):
        await alice.pull(name)


async def ask(alice: Node, sql: str, **more: Any) -> tuple[wire.QueryHead, list[dict[str, Any]]]:
    """The head of an answer, and its rows."""
    said = bytearray()

    async def take(data: bytes) -> None:
        said.extend(data)

    with trio.fail_after(PATIENCE):
        await alice.api.queries.answer(wire.QueryRequest(sql=sql, **more), take)
    frames = list(AnswerFrameReader().feed(bytes(said)))
    assert [frames[0][0], frames[-1][0]] == [HEAD, END]
    if more.get("plain"):
        return shown(frames)
    head = msgspec.json.decode(frames[0][1], type=wire.QueryHead)
    rows = pa.ipc.open_stream(b"".join(content for kind, content in frames if kind == ROWS)).read_all().to_pylist()
    assert msgspec.json.decode(frames[-1][1], type=wire.QueryEnd).rows == len(rows)
    return head, rows


def shown(frames: list[tuple[bytes, bytes]]) -> tuple[wire.QueryHead, list[dict[str, Any]]]:
    """As ``odfctl`` gets them."""
    answer = Shown(iter(frames))
    names = [name for name, _ in answer.columns]
    rows = [dict(zip(names, row, strict=True)) for page in answer.pages() for row in page]
    assert msgspec.json.decode(frames[-1][1], type=wire.QueryEnd).rows == len(rows) == answer.rows
    return answer.head, rows


async def refused(alice: Node, sql: str, **more: Any) -> Fault:
    with pytest.raises(Fault) as refusal:
        await ask(alice, sql, **more)
    return refusal.value


async def test_datasets_are_asked_and_joined_and_cut(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        head, rows = await ask(alice, 'select "offset", op, city from cities')
        assert [tuple(row.values()) for row in rows] == [(0, 0, "Graz"), (1, 0, "Linz"), (2, 0, "Wels")]
        some = "select city, event_time, range(2) as l, $x::decimal(3, 1) as d from cities limit 1"
        assert (await ask(alice, some, plain=True, parameters={"x": "1.5"}))[1] == [
            {"city": "Graz", "event_time": "2024-01-01T00:00:00Z", "l": [0, 1], "d": "1.5"}
        ], "as JSON"
        assert len((await ask(alice, "select * from range(2500)", plain=True))[1]) == 2500
        (pin,) = head.pins
        chain = alice.home.chains.chain(alice.dataset("cities"))
        newest = chain.head()
        assert (pin.name, pin.block, pin.sequence_number) == ("cities", str(newest.hash), newest.sequence_number)
        assert head.standing == head.standings[0].fact

        joined = "select count(*) n from towns t join current.cities c on t.city = c.city where c.population > $least"
        head, rows = await ask(alice, joined, parameters={"least": 100_000})
        assert rows == [{"n": 2}]
        assert [each.name for each in head.pins] == ["towns", "cities"]

        data = [block for block in map(chain.block_at, range(newest.size)) if type(block.event).__name__ == "AddData"]
        first = data[0].sequence_number
        for clause in (f"at block '#{first}'", f"at block '{data[0].hash}'"):
            _, rows = await ask(alice, f"select count(*) n from cities {clause}")
            assert rows == [{"n": 2}], clause
        _, rows = await ask(alice, "select max(city) c from cities as at '2024-01-02' x")
        assert rows == [{"c": "Linz"}]
        assert (await refused(alice, "select 1 from cities as of '1999-01-01'")).rule == "query-cut"
        assert (await refused(alice, "select 1 from cities at block '#99'")).rule == "query-cut"
        assert (await refused(alice, "select 1 from cities as of 'noon'")).rule == "query-time"


async def test_who_has_no_rows_yet_is_told_how_they_come(world: World) -> None:
    """A dataset that files are pushed into is not pulled."""
    pushed = ROOT.replace("SetPollingSource", "AddPushSource").replace("name: cities", "name: pushed")
    source = pushed[: pushed.index("fetch:")] + "sourceName: default\n" + pushed[pushed.index("      read:") :]
    async with world.running("alice") as alice:
        for text in (ROOT, source):
            await alice.apply(text)
        for name, way in (("cities", "odfctl pull cities"), ("pushed", "odfctl ingest pushed FILE")):
            assert (await refused(alice, f"select 1 from {name}")).hint.endswith(way)


async def test_a_pin_gives_the_same_rows_for_ever(world: World) -> None:
    async with world.running("alice") as alice:
        world.write("alice", "a.csv", *ROWS_A)
        await alice.apply(ROOT)
        await alice.pull()
        sql = "select count(*) n from cities"
        head, before = await ask(alice, sql)
        world.write("alice", "b.csv", *ROWS_B)
        await alice.pull("cities")
        again, rows = await ask(alice, sql, pins=head.pins)
        assert (rows, again.pins) == (before, head.pins)
        assert (await ask(alice, sql))[1] == [{"n": 3}]
        lie = msgspec.structs.replace(head.pins[0], sequence_number=0)
        assert (await refused(alice, sql, pins=(lie,))).rule == "query-pin"
        other = msgspec.structs.replace(head.pins[0], at="as-of 2024-01-01")
        fault = await refused(alice, sql, pins=(other,))
        assert (fault.rule, str(fault)) == (
            "query-pin",
            "line 1, column 24: the pins are for cities with as-of 2024-01-01, and the query reads it without a time",
        )
        absent = msgspec.structs.replace(head.pins[0], id=head.pins[0].id[:-4] + "0000")
        fault = await refused(alice, sql, pins=(absent,))
        assert (fault.rule, str(fault)) == (
            "query-pin",
            "line 1, column 24: cities is not pinned, and other datasets are",
        )


async def test_what_is_wrong_is_told_before_any_row(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        fault = await refused(alice, "select * from\n citis")
        assert isinstance(fault, NotFound)
        assert fault.place == "line 2, column 2"
        assert "did you mean cities?" in fault.hint
        assert "odfctl mirror add" in fault.hint
        fault = await refused(alice, "select citi from cities")
        assert isinstance(fault, Invalid)
        assert "city" in fault.hint
        assert isinstance(await refused(alice, "select * from read_csv('/etc/passwd')"), Invalid)


async def test_what_is_required_is_satisfied_or_refused(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        sql = "select count(*) n from towns, cities"
        assert (await ask(alice, sql, require="data"))[1] == [{"n": 9}]
        fault = await refused(alice, sql, require="attested:2 & data")
        assert isinstance(fault, Refused)
        assert fault.rule == "query-require"
        assert fault.message.startswith("towns does not satisfy attested:2 & data: only the first")
        assert "--cut" in fault.hint
        head, rows = await ask(alice, sql, require="attested:2 & data", cut=True)
        assert rows == [{"n": 0}], "the blocks before the first that somebody would have to attest"
        towns = alice.home.chains.chain(alice.dataset("towns"))
        assert head.pins[0].sequence_number == towns.last_of(("ExecuteTransform",)).sequence_number - 2
        assert head.remarks[0].startswith("towns is read to block #")
        fault = await refused(alice, sql, require="witnessed:3", cut=True)
        assert fault.rule == "query-require"
        assert isinstance(await refused(alice, sql, require="nonsense:x"), Invalid)
        for form in ({"plain": True}, {"lines": "csv"}):
            assert (await refused(alice, sql, prove=True, **form)).rule == "query-prove"


async def test_a_damaged_slice_is_told_and_never_skipped(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        dataset = alice.dataset("cities")
        chain = alice.home.chains.chain(dataset)
        last = chain.last_of(("AddData",))
        name = last.event.new_data.physical_hash
        with alice.home.database.write() as connection:
            done = connection.execute("UPDATE small_objects SET data = zeroblob(length(data)) WHERE name = ?", (name,))
            assert done.rowcount == 1
        fault = await refused(alice, "select count(*) from cities")
        assert isinstance(fault, Environment)
        assert fault.rule == DAMAGED
        assert fault.place == f"cities block #{last.sequence_number}"
        assert "odfctl pull cities --repair" in fault.hint
        with pytest.raises(Environment) as told:
            await alice.api.datasets.tail("cities", 10)
        assert (told.value.rule, told.value.place) == (DAMAGED, fault.place)
        with alice.home.database.write() as connection:
            connection.execute("DELETE FROM small_objects WHERE name = ?", (name,))
        gone = await refused(alice, "select count(*) from cities")
        assert (gone.rule, gone.place, gone.hint) == (MISSING, fault.place, fault.hint)
        assert (await ask(alice, f"select count(*) n from cities at block '#{last.sequence_number - 1}'"))[1]


async def test_bytes_that_are_lost_after_they_were_hashed_are_told(world: World) -> None:
    """The time of the file does not change, as no program wrote it."""
    async with world.running("alice") as alice:
        names = (hashlib.sha256(bytes(number % 256 for number in (n, n >> 8))).hexdigest() for n in range(3000))
        world.write("alice", "a.csv", *(f"2024-01-01T00:00:00Z,{name},1" for name in names))
        await alice.apply(ROOT)
        await alice.pull()
        last = alice.home.chains.chain(alice.dataset("cities")).last_of(("AddData",))
        await ask(alice, "select count(*) from cities")
        file = alice.home.objects.path(last.event.new_data.physical_hash)
        times = file.stat().st_atime_ns, file.stat().st_mtime_ns
        file.chmod(0o600)
        with file.open("r+b") as written:
            written.seek(-8, os.SEEK_END)
            written.write(bytes(8))
        os.utime(file, ns=times)
        fault = await refused(alice, "select count(*) from cities")
        assert (fault.rule, fault.place) == (DAMAGED, f"cities block #{last.sequence_number}")


async def test_what_is_read_is_held_and_let_go(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        chain = alice.home.chains.chain(alice.dataset("cities"))
        name = chain.last_of(("AddData",)).event.new_data.physical_hash
        seen = []

        async def look(_: bytes) -> None:
            seen.append(alice.home.objects.holds.is_held(name))

        await alice.api.queries.answer(wire.QueryRequest(sql="select * from cities"), look)
        assert seen
        assert all(seen)
        assert not alice.home.objects.holds.is_held(name)


async def test_a_query_has_its_time_and_its_turn(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        readers = alice.parts.readers
        readers._turns.total_tokens = 1
        order: list[int] = []

        async def one(number: int) -> None:
            _, rows = await ask(alice, f"select {number} as number")
            order.append(rows[0]["number"])

        async def waiting(count: int) -> None:
            await became(lambda: readers._turns.statistics().tasks_waiting == count)

        async with readers.one(), trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(one, number)
                await waiting(number + 1)
            assert order == [], "the only place is taken"
            nursery.cancel_scope.cancel()
        async with trio.open_nursery() as nursery, readers.one():
            for number in range(3):
                nursery.start_soon(one, number)
                await waiting(number + 1)
        assert order == [0, 1, 2]
        readers.limits = dataclasses.replace(readers.limits, seconds=0.0)
        assert (await refused(alice, "select 1")).rule == "query-deadline"


async def test_who_goes_away_leaves_no_process_behind(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        begun = trio.Event()

        async def never(_: bytes) -> None:
            begun.set()
            await trio.sleep_forever()

        endless = wire.QueryRequest(sql="select a.range from range(1000000000) a, cities")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alice.api.queries.answer, endless, never)
            with trio.fail_after(PATIENCE):
                await begun.wait()
            nursery.cancel_scope.cancel()
        _, rows = await ask(alice, "select 1 as one")
        assert rows == [{"one": 1}]


async def test_what_held_is_kept_and_folded_on(world: World) -> None:
    """At an earlier block, then on from there; a fold that is damaged, or of another history, is dropped."""
    async with world.running("alice") as alice:
        await alice.done(alice.api.flow.import_(wire.ImportRequest(source=str(AIRLINES), as_name="airlines")))
        folding, folder = alice.api.queries._folding, alice.home.folder("folds")

        async def asked(sql: str, least: int) -> tuple[Any, list[Any]]:
            """The answer, and the folds that there are when it was given."""
            folding._least = least
            answer = await ask(alice, sql)
            with trio.fail_after(PATIENCE):
                await folding.wait_settled()
            return answer, sorted(folder.glob("*/*"))

        before, now = "select * from current.airlines at block '#3'", "select * from current.airlines"
        fresh = [(await asked(sql, 10**9))[0] for sql in (before, now)]
        found, (first,) = await asked(before, 1)
        assert found == fresh[0]
        found, folds = await asked(now, 1)
        assert (found, len(folds)) == (fresh[1], 2), "from the first on"
        (second,) = set(folds) - {first}
        assert [await ask(alice, sql) for sql in (before, now)] == fresh, "as they were kept"
        second.write_bytes(second.read_bytes()[:-1] + b"?")
        assert await asked(now, 10**9) == (fresh[1], [first]), "what is damaged is dropped"
        assert alice.parts.collection._collect_folds(False) == (0, 0)
        first.rename(first.with_name(first.name.replace(".f1620", ".f1620" + "0" * 4, 1)))
        assert alice.parts.collection._collect_folds(False)[0] == 1, "of another history"
        await asked(now, 1)
        await alice.api.declarations.delete("Dataset", "airlines")
        assert not list(folder.glob("*/*"))


async def test_an_engine_of_transforms_answers_over_the_same_cuts(world: World) -> None:
    """The small engine copies its one input: what holds and what is cut are made ready for it."""
    async with world.running("alice") as alice:
        await filled(world, alice)
        for table in ("cities at block '#2' \"my c\"", "cities as at '2024-01-02'", "current.cities", "cities"):
            sql = f"SELECT * FROM {table}"
            expected, rows = await ask(alice, f'{sql} order by "offset"', plain=True)
            head, found = await ask(alice, sql, engine="spark", plain=True)
            assert alice.engine.warmed >= 1
            assert (head, sorted(found, key=lambda row: row["offset"])) == (expected, rows), table
        pinned = await ask(alice, "SELECT * FROM c", engine="spark", by_pins=True,
                           pins=(msgspec.structs.replace(head.pins[0], name="c"),))  # fmt: skip
        assert len(pinned[1]) == len(rows) == 3
        for more, rule in (
            ({"engine": "flink"}, "engine-known"),
            ({"prove": True}, "query-engine"),
            ({"explain": True}, "query-engine"),
            ({"parameters": [1]}, "query-engine"),
            ({"require": "witnessed:3"}, "query-require"),
        ):
            fault = await refused(alice, "SELECT * FROM cities", **{"engine": "spark", **more})
            assert fault.rule == rule, more
        told = await refused(alice, "SELECT city FROM cities", engine="spark")
        assert "small engine" in str(told)
        assert (await refused(alice, "SELECT * FROM read_csv('x')", engine="spark")).rule == "query-function"
        assert not list(alice.home.folder("staging").iterdir())


async def test_queries_are_served_before_their_part_is_ready(world: World) -> None:
    """A node is ready when its parts are: a query that comes then must not be told that none are served."""
    alice, life = world.node("alice"), Life()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_readers, alice.parts.readers, life)
        await life.wait_ready()
        assert (await ask(alice, "select 1 as n"))[1] == [{"n": 1}]
        life.stopping.set()
