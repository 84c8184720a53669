"""Questions over HTTP as programs for a kamu node ask them: what is answered, in which form, and what is not there."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import AsyncGenerator
from functools import partial

import httpx
import msgspec
import pytest
import trio
import trio.lowlevel

import odfd_client
from chain.errors import Refused
from chain.multihash import Multihash
from config import model
from engines.query.reader import QueryProcess
from engines.query.requests import ALL_ROWS, Execute, RowSelection
from odfd.control import wire
from odfd.queries.doors import BUSY
from odfd.queries.planning import HINT_READABLE
from odfd.services.queries.fair_turns import WAITING
from odfd.services.queries.public_queries import ReaderQueries
from worlds.eventually import PATIENCE
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World, until
from worlds.sql_texts import endless

ASKED = model.Http(listen=("127.0.0.1:0",), query=True)
ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000", "2024-01-03T00:00:00Z,Wels,62000")
CITIES = "select city, population from cities order by city"


def url_of(node: Node) -> str:
    (url,) = node.parts.site.urls
    return str(url)


async def filled(world: World, node: Node) -> None:
    world.write("alice", "a.csv", *ROWS)
    await node.apply(ROOT, DERIVED)
    await node.pull()


async def test_a_question_is_answered_as_kamu_answers_it(world: World) -> None:
    async with (
        world.running("alice", private=True, http=ASKED) as alice,
        httpx.AsyncClient(base_url=url_of(alice), timeout=PATIENCE) as client,
    ):
        await filled(world, alice)
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
        world.write("alice", "b.csv", "2024-01-04T00:00:00Z,Enns,12000")
        await alice.pull("cities")
        again = (await client.post("/query", json=given["input"])).json()
        assert again["output"] == given["output"]
        newest = (await client.get("/query", params={"query": CITIES, "format": "jsonsoa", "limit": 1})).json()
        assert newest["output"] == {"data": {"city": ["Enns"], "population": [12000]}, "dataFormat": "JsonSoA"}


async def test_datasets_of_a_question_are_bound_to_names_and_blocks(world: World) -> None:
    async with (
        world.running("alice", private=True, http=ASKED) as alice,
        httpx.AsyncClient(base_url=url_of(alice), timeout=PATIENCE) as client,
    ):
        await filled(world, alice)
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
    async with (
        world.running("alice", private=True, http=ASKED) as alice,
        httpx.AsyncClient(base_url=url_of(alice), timeout=PATIENCE) as client,
    ):
        await filled(world, alice)
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
    """Word for word, by every path of HTTP; and no answer walks over all names, which would take time for it alone."""
    async with (
        world.running("alice", private=True, http=ASKED) as alice,
        httpx.AsyncClient(base_url=url_of(alice), timeout=PATIENCE) as client,
    ):
        await filled(world, alice)
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
        await filled(world, alice)
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
    """Four readers: two for others, whatever they ask; sixteen wait, and the next is told at once."""
    async with world.running("alice", private=True, http=ASKED) as alice:
        await filled(world, alice)
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
    """Its process too, while DuckDB computes and nothing is sent."""
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
        await filled(world, alice)
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
        await filled(world, alice)
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
        await filled(world, alice)
        await alice.publish("cities")
        given = (await client.get("/query", params={"query": "from cities", "limit": 2, "include": "proof"})).json()
        assert [row["city"] for row in given["output"]["data"]] == ["Graz", "Linz"]
        assert given["proof"]["verificationMethod"] == str(alice.home.keys.node_key().did)
        asked = {name: given[name] for name in ("input", "subQueries", "commitment", "proof")}
        for sql, rule in (("select first(city) c from cities", "query-prove"), ("from towns", "query-dataset")):
            said = (await client.post("/query", json={"query": sql, "include": ["Proof"]})).json()
            assert said["rule"] == rule
        world.write("alice", "b.csv", "2024-01-04T00:00:00Z,Aach,2200")
        await alice.pull("cities")
        assert (await client.post("/verify", json=asked)).json() == {"ok": True}
        async with (
            world.running("bob", http=ASKED) as bob,
            httpx.AsyncClient(base_url=url_of(bob), timeout=PATIENCE) as other,
        ):
            told = (await other.post("/verify", json=asked)).json()
            assert told["error"]["kind"] == "VerificationFailed::DatasetNotFound"


async def test_nobody_but_the_owner_has_an_answer_signed(world: World) -> None:
    """By no door: what the node signs is its own word."""
    asked = wire.QueryRequest(sql=CITIES, prove=True)
    async with (
        world.running("alice", private=True, http=ASKED) as alice,
        httpx.AsyncClient(base_url=url_of(alice), timeout=PATIENCE) as client,
    ):
        await filled(world, alice)
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
