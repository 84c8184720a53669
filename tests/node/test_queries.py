"""Questions in SQL to a node, of its own API and as programs for a kamu node ask them."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import os
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pytest
import trio
import trio.lowlevel

import odfd_client
from chain.errors import Environment, Fault, Invalid, NotFound, Refused
from chain.multihash import Multihash
from chain.store.files import DAMAGED
from config import model
from engines.query.frames import END, HEAD, ROWS, AnswerFrameReader
from engines.query.reader import QueryProcess
from engines.query.requests import ALL_ROWS, Execute, RowSelection
from odfd.cli.sql.query import Shown
from odfd.control import wire
from odfd.queries.doors import BUSY
from odfd.queries.planning import HINT_READABLE
from odfd.runtime.supervision import Life
from odfd.services.execution.feature import run_readers
from odfd.services.queries.fair_turns import WAITING
from odfd.services.queries.public_queries import ReaderQueries
from odfd.store.slice_files import MISSING
from worlds.eventually import PATIENCE, became
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World, until
from worlds.sql_texts import endless

# Questions in SQL to a node: what is read, how it is cut, what is told beside it, and what is refused.


ROWS_A = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
ROWS_B = ("2024-01-03T00:00:00Z,Wels,62000",)
AIRLINES = Path(__file__).parents[1] / "golden" / "kamu" / "airlines"


async def filled(world: World, alice: Node) -> None:
    """Two files, two blocks of data; towns repeats cities."""
    await alice.take_in(ROOT, DERIVED, files={"a.csv": ROWS_A})
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
        await alice.take_in(ROOT, files={"a.csv": ROWS_A})
        sql = "select count(*) n from cities"
        head, before = await ask(alice, sql)
        await alice.take_in(files={"b.csv": ROWS_B}, pulls=["cities"])
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
    """Attack T-DISK-01: a query over a slice that was changed on disk.

    Defence: its bytes are hashed before they are read.
    """
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
        await alice.take_in(ROOT, files={"a.csv": (f"2024-01-01T00:00:00Z,{name},1" for name in names)})
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


# Questions over HTTP as programs for a kamu node ask them: what is answered, in which form, and what is not there.


ASKED = model.Http(listen=("127.0.0.1:0",), query=True)
PUT = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000", "2024-01-03T00:00:00Z,Wels,62000")
CITIES = "select city, population from cities order by city"


def url_of(node: Node) -> str:
    (url,) = node.parts.site.urls
    return str(url)


async def fill_once(world: World, node: Node) -> None:
    world.write("alice", "a.csv", *PUT)
    await node.apply(ROOT, DERIVED)
    await node.pull()


async def test_a_question_is_answered_as_kamu_answers_it(world: World) -> None:
    async with (
        world.running("alice", private=True, http=ASKED) as alice,
        httpx.AsyncClient(base_url=url_of(alice), timeout=PATIENCE) as client,
    ):
        await fill_once(world, alice)
        await alice.publish("cities")
        given = (await client.post("/query", json={"query": CITIES})).json()
        assert given["output"] == {
            "data": [{"city": c, "population": p} for c, p in (("Graz", 300000), ("Linz", 210000), ("Wels", 62000))],
            "dataFormat": "JsonAoS",
        }
        assert given["odfd"]["standing"] == "data"
        body = {"query": CITIES, "dataFormat": "json-aoa", "include": ["input", "schema"], "limit": 1, "skip": 1}
        given = (await client.post("/query", json=body)).json()
        assert given["output"]["data"] == [["Linz", 210000]]
        assert [each["data_type"] for each in given["output"]["schema"]["fields"]] == ["Utf8", "Int64"]
        head = alice.home.chains.chain(alice.dataset("cities")).head()
        state = {"id": str(alice.dataset("cities")), "alias": "cities", "blockHash": str(head.hash)}
        assert given["input"] == body | {
            "queryDialect": "SqlDataFusion",
            "dataFormat": "JsonAoA",
            "include": ["Input", "Schema"],
            "schemaFormat": "ArrowJson",
            "datasets": [state],
        }
        await alice.take_in(files={"b.csv": ["2024-01-04T00:00:00Z,Enns,12000"]}, pulls=["cities"])
        again = (await client.post("/query", json=given["input"])).json()
        assert again["output"] == given["output"]
        newest = (await client.get("/query", params={"query": CITIES, "format": "jsonsoa", "limit": 1})).json()
        assert newest["output"] == {"data": {"city": ["Enns"], "population": [12000]}, "dataFormat": "JsonSoA"}


async def test_datasets_of_a_question_are_bound_to_names_and_blocks(world: World) -> None:
    async with (
        world.running("alice", private=True, http=ASKED) as alice,
        httpx.AsyncClient(base_url=url_of(alice), timeout=PATIENCE) as client,
    ):
        await fill_once(world, alice)
        await alice.publish("cities")
        state = {"id": str(alice.dataset("cities")), "alias": "x/y"}
        sql = 'select count(*) n from "x/y"'
        given = (await client.post("/query", json={"query": sql, "datasets": [state], "include": ["Input"]})).json()
        assert given["output"]["data"] == [{"n": 3}]
        assert given["input"]["datasets"][0]["alias"] == "x/y"
        for wrong in (
            {"id": str(alice.dataset("towns")), "alias": "x/y"},
            state | {"blockHash": str(Multihash.sha3_256(b"none"))},
            state | {"alias": "z"},
        ):
            said = await client.post("/query", json={"query": sql, "datasets": [wrong]})
            assert said.status_code == 404, said.text
        said = await client.post("/query", json={"query": sql, "datasets": [state, state]})
        assert said.status_code == 400


async def test_what_is_private_is_not_there_for_questions(world: World) -> None:
    """Attack T-PRIVATE-01: a query over HTTP on a private dataset, or on blocks that policy withholds.

    Defence: one predicate decides which blocks others may read, for names, ids, pins and blocks alike; other blocks
    appear not to exist, and no hint names them.
    """
    async with (
        world.running("alice", private=True, http=ASKED) as alice,
        httpx.AsyncClient(base_url=url_of(alice), timeout=PATIENCE) as client,
    ):
        await fill_once(world, alice)
        await alice.publish("cities")
        towns = str(alice.dataset("towns"))
        for name in ("towns", "Towns", f'"{towns}"', "current.towns", "(select * from towns)", "nothing"):
            said = await client.post("/query", json={"query": f"select * from {name}"})
            assert said.status_code == 404, name
            assert said.json()["hint"] == HINT_READABLE
        near = (await client.post("/query", json={"query": "select * from town"})).json()
        assert "did you mean" not in str(near)
        for path in ("/towns/tail", f"/{towns}/tail", "/towns/metadata", "/nothing/tail"):
            assert (await client.get(path)).status_code == 404, path
        assert (await client.post("/query", json={"query": "select * from cities, towns"})).status_code == 404
        await alice.publish("towns")
        assert (await client.get("/towns/tail")).status_code == 200


async def test_no_answer_tells_a_private_name_from_one_that_is_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack T-PRIVATE-01: guessing names of private datasets on a site by words, causes or response times.

    Defence: the answer has the same words and takes the same lookups; similar names are not searched.

    Word for word, by every path of HTTP; and no answer walks over all names, which would take time for it alone.
    """
    async with (
        world.running("alice", private=True, http=ASKED) as alice,
        httpx.AsyncClient(base_url=url_of(alice), timeout=PATIENCE) as client,
    ):
        await fill_once(world, alice)
        await alice.publish("cities")

        async def answers(name: str) -> list[str]:
            files = ("refs/head", "tail", "metadata", "metadata?include=schema", "packs/0", "blocks/x", "data/x", "x")
            said = [
                await client.get(path)
                for path in (*(f"/{name}/{file}" for file in files), f"/dataset/v1alpha1/datasets/{name}/detail")
            ]
            for sql in (f'select * from "{name}"', f'select * from current."{name}"'):
                said.append(await client.post("/query", json={"query": sql}))
                said.append(await client.post("/node/v1alpha1/query", json={"sql": sql}))
            assert {each.status_code for each in said} == {404}
            return [each.text.replace(name, "NAME") for each in said]

        monkeypatch.setattr(difflib, "get_close_matches", None)
        assert await answers("towns") == await answers("gowns")


async def test_the_tail_and_the_metadata_of_a_dataset(world: World) -> None:
    async with (
        world.running("alice", private=True, http=ASKED) as alice,
        httpx.AsyncClient(base_url=url_of(alice), timeout=PATIENCE) as client,
    ):
        await fill_once(world, alice)
        await alice.publish("cities")
        given = (await client.get("/cities/tail", params={"skip": 1, "limit": 1, "schemaFormat": "OdfJson"})).json()
        assert [(row["offset"], row["op"], row["city"]) for row in given["data"]] == [(1, 0, "Linz")]
        assert given["data"][0]["event_time"] == "2024-01-02T00:00:00Z"
        assert {"name": "city", "type": {"kind": "Option", "inner": {"kind": "String"}}} in given["schema"]["fields"]
        given = (await client.get("/cities/metadata")).json()
        assert given["output"] == {"seed": {"datasetId": str(alice.dataset("cities")), "datasetKind": "Root"}}
        every = {"include": "attachments,info,license,refs,schema,seed,vocab"}
        given = (await client.get("/cities/metadata", params=every)).json()["output"]
        assert given["refs"] == [{"name": "head", "blockHash": (await client.get("/cities/refs/head")).text}]
        assert given["vocab"]["eventTimeColumn"] == "event_time"
        assert given["schema"]["fields"][0]["name"] == "offset"


async def test_the_door_is_shut_until_it_is_opened(world: World) -> None:
    closed = model.Http(listen=("127.0.0.1:0",))
    async with (
        world.running("alice", http=closed) as alice,
        httpx.AsyncClient(base_url=url_of(alice), timeout=PATIENCE) as client,
    ):
        assert (await client.get("/query", params={"query": "select 1"})).status_code == 404
        assert (await client.post("/query", json={"query": "select 1"})).status_code == 405


async def test_a_crowd_of_questions_leaves_readers_to_the_owner(world: World) -> None:
    """Attack T-QUERY-04: queries without end over HTTP.

    Defence: callers other than the owner get half of the readers and sixteen places in the queue; a query is charged to
    its address before it runs.

    Four readers: two for others, whatever they ask; sixteen wait, and the next is told at once.
    """
    async with world.running("alice", private=True, http=ASKED) as alice:
        await fill_once(world, alice)
        await alice.publish("cities")
        stuck, told = 0, []

        async def never(_: bytes) -> None:
            nonlocal stuck
            stuck += 1
            await trio.sleep_forever()

        async def ask() -> None:
            try:
                await alice.parts.public_queries.answer(wire.QueryRequest(sql=CITIES), never, {}, ALL_ROWS)
            except Refused as fault:
                told.append(fault.rule)

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for _ in range(2 + WAITING + 3):
                    nursery.start_soon(ask)
                while stuck < 2 or len(told) < 3:
                    await trio.lowlevel.checkpoint()
                assert (stuck, told) == (2, [BUSY] * 3)
                rows: list[bytes] = []

                async def take(data: bytes) -> None:
                    rows.append(data)

                await alice.api.queries.answer(wire.QueryRequest(sql=CITIES), take)
                assert rows
                nursery.cancel_scope.cancel()


async def test_an_endless_query_ends_with_its_client(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-QUERY-04: an anonymous caller that asks without end, and leaves.

    Defence: the query's process ends when its client is gone.

    Its process too, while DuckDB computes and nothing is sent.
    """
    begun: list[QueryProcess] = []
    ended: list[QueryProcess] = []
    execute, stop = QueryProcess.execute, QueryProcess.stop

    def executed(process: QueryProcess, request: Execute) -> AsyncGenerator[tuple[bytes, memoryview], None]:
        begun.append(process)
        return execute(process, request)

    async def stopped(process: QueryProcess) -> None:
        await stop(process)
        ended.append(process)

    monkeypatch.setattr(QueryProcess, "execute", executed)
    monkeypatch.setattr(QueryProcess, "stop", stopped)
    async with world.running("alice", private=True, http=ASKED) as alice:
        await fill_once(world, alice)
        await alice.publish("cities")
        readers = alice.parts.readers
        async with httpx.AsyncClient(base_url=url_of(alice), timeout=PATIENCE) as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(client.post, "/query", json={"query": endless("cities")}))
                await until(lambda: bool(begun))  # a turn is taken before the first query has a sandbox
                nursery.cancel_scope.cancel()
            await until(lambda: readers.counts == (0, 0) and begun[0] in ended)
            assert not ended[0].is_alive
            assert (await client.post("/query", json={"query": CITIES})).status_code == 200


async def test_our_client_asks_by_a_url(world: World) -> None:
    def ask(url: str, towns: str) -> None:
        client = odfd_client.connect(url)
        assert [each.name for each in client.datasets()] == ["cities"]
        large = client.open("cities").where(odfd_client.col("population") > 100_000).select("city")
        assert large.to_arrow().to_pylist() == [{"city": "Graz"}, {"city": "Linz"}]
        assert (large.pin.name, large.standing) == ("cities", "data")
        assert client.open("cities").pinned(large.pin).to_arrow().num_rows == 3
        for ref in ("towns", towns):
            with pytest.raises(odfd_client.NotFound):
                client.open(ref)
            with pytest.raises(odfd_client.NotFound):
                client.sql(f'select * from "{ref}"').to_arrow()
        update = next(client.open("cities").listen(seconds=0.1))
        assert update.batch.num_rows == 3
        assert not list(client.open("cities").listen(after=str(update.position), follow=False))
        other = dataclasses.replace(update.position, block=str(Multihash.sha3_256(b"other")))
        with pytest.raises(odfd_client.NotFound, match="rewritten"):
            next(client.open("cities").listen(after=other))
        with pytest.raises(odfd_client.Invalid, match="citi"):
            client.sql("select citi from cities").to_arrow()

    async with world.running("alice", private=True, http=ASKED) as alice:
        await fill_once(world, alice)
        await alice.publish("cities")
        with trio.fail_after(PATIENCE):
            await trio.to_thread.run_sync(ask, url_of(alice), str(alice.dataset("towns")))
    with pytest.raises(odfd_client.Unreachable):
        await trio.to_thread.run_sync(odfd_client.connect, "http://127.0.0.1:1")
    with pytest.raises(odfd_client.Unreachable):
        await trio.to_thread.run_sync(odfd_client.connect, "grpc://127.0.0.1:1")
    with pytest.raises(odfd_client.Invalid, match="ftp"):
        odfd_client.connect("ftp://127.0.0.1:1")


async def test_others_have_answers_proven_where_the_owner_says_so(world: World) -> None:
    """And checked by any node that has the data: a later one too."""
    asks = model.Http(listen=("127.0.0.1:0",), query=True, prove=True)
    async with (
        world.running("alice", private=True, http=asks) as alice,
        httpx.AsyncClient(base_url=url_of(alice), timeout=PATIENCE) as client,
    ):
        await fill_once(world, alice)
        await alice.publish("cities")
        given = (await client.get("/query", params={"query": "from cities", "limit": 2, "include": "proof"})).json()
        assert [row["city"] for row in given["output"]["data"]] == ["Graz", "Linz"]
        assert given["proof"]["verificationMethod"] == str(alice.home.keys.node_key().did)
        asked = {name: given[name] for name in ("input", "subQueries", "commitment", "proof")}
        for sql, rule in (("select first(city) c from cities", "query-prove"), ("from towns", "query-dataset")):
            said = (await client.post("/query", json={"query": sql, "include": ["Proof"]})).json()
            assert said["rule"] == rule
        await alice.take_in(files={"b.csv": ["2024-01-04T00:00:00Z,Aach,2200"]}, pulls=["cities"])
        assert (await client.post("/verify", json=asked)).json() == {"ok": True}
        async with (
            world.running("bob", http=ASKED) as bob,
            httpx.AsyncClient(base_url=url_of(bob), timeout=PATIENCE) as other,
        ):
            told = (await other.post("/verify", json=asked)).json()
            assert told["error"]["kind"] == "VerificationFailed::DatasetNotFound"


async def test_nobody_but_the_owner_has_an_answer_signed(world: World) -> None:
    """Attack T-KEY-02: an unauthorised request for a signed answer, by HTTP or Flight.

    Defence: statements are signed for callers of the control socket, and refused by name elsewhere; commitments only
    where `http.prove` is set, over published data, in bytes with which no statement begins.

    By no door: what the node signs is its own word.
    """
    asked = wire.QueryRequest(sql=CITIES, prove=True)
    async with (
        world.running("alice", private=True, http=ASKED) as alice,
        httpx.AsyncClient(base_url=url_of(alice), timeout=PATIENCE) as client,
    ):
        await fill_once(world, alice)
        await alice.publish("cities")
        given = await client.post("/node/v1alpha1/query", content=msgspec.json.encode(asked))
        assert given.status_code == 403
        assert given.json()["rule"] == "query-proof"
        flight = ReaderQueries(alice.home, alice.parts.queries, alice.parts.public_queries)
        for owner in (True, False):
            with pytest.raises(Refused, match="to its owner alone"):
                await flight.answer(asked, never, RowSelection(), owner=owner)


async def never(_frame: bytes) -> None:
    raise AssertionError("nothing is sent")
