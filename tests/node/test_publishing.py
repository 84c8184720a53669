"""From manifests, files and corrections to data on a node with the small engine, exactly once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from chain.data.parquet import open_slice
from chain.errors import Environment, Fault, Invalid, NotFound, Refused
from chain.model.changelog import CHANGELOG, says_by_time, says_changelog
from chain.model.events import AddData, SetDataSchema
from chain.state import load_state
from engines.contract import Diagnostic, Severity, ValidateResponse
from engines.errors import ALIVE, JVM_LOST, EngineFault, EngineLost
from odfd.control import wire
from worlds.manifests import DERIVED, GATE, ROOT
from worlds.node_world import Node, World

# From manifests to data: apply, pull, ingest, delete, on a node with the small engine.


ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")


async def test_a_root_and_what_derives_from_it(world: World) -> None:
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        made = await alice.apply(DERIVED, ROOT)
        assert [(item.name, item.action) for item in made.items] == [("cities", "created"), ("towns", "created")]
        items = await alice.pull()
        assert [(item.ref, item.outcome, item.records) for item in items] == [
            ("cities", "updated", 2),
            ("towns", "updated", 2),
        ]
        again = await alice.pull("towns", "cities")
        assert [(item.ref, item.outcome) for item in again] == [("cities", "up-to-date"), ("towns", "up-to-date")]
        views = {view.name: view for view in await alice.dataset_views()}
        assert (views["towns"].records, views["towns"].state, views["towns"].rely_on.fact) == (2, "fresh", "data")
        assert [item.action for item in (await alice.apply(ROOT, DERIVED)).items] == ["unchanged"] * 2


async def test_one_failure_harms_no_other(world: World) -> None:
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        await alice.apply(ROOT, ROOT.replace("name: cities", "name: villages"), DERIVED)
        alice.engine.fault = Environment("no Java", rule="java")
        outcomes = {item.ref: (item.outcome, item.message) for item in await alice.pull()}
        assert outcomes["towns"] == ("failed", "no Java")
        assert outcomes["cities"][0] == outcomes["villages"][0] == "updated"
        alice.engine.fault = None
        assert (await alice.pull("towns"))[0].outcome == "updated"


@pytest.mark.parametrize(
    ("old", "new", "rule", "place"),
    [
        ("datasetRef: cities", "datasetRef: citis", "dataset-ref", "m0.yaml:9"),
        ("datasetRef: cities", "datasetRef: kamu/cities", "dataset-ref", "m0.yaml:9"),
        ("select * from cities", "select now()", "shape-not-supported", "m0.yaml:11"),
        ("engine: spark", "engine: flink", "engine-unknown", "m0.yaml:11"),
    ],
)
async def test_refusals_name_the_place_and_leave_nothing(
    world: World, old: str, new: str, rule: str, place: str
) -> None:
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        keys = sorted(path.name for path in (alice.home.directory / "keys").iterdir())
        (item,) = (await alice.apply(DERIVED.replace(old, new))).items
        assert (item.action, item.fault.rule) == ("failed", rule)
        assert item.fault.place.startswith(place)
        assert len(alice.home.chains.datasets()) == 1
        assert sorted(path.name for path in (alice.home.directory / "keys").iterdir()) == keys


async def test_a_dataset_that_exists_as_something_else(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        (item,) = (await alice.apply(ROOT.replace("kind: Root", "kind: Derivative"))).items
        assert item.action == "failed"
        assert "exists as a Root" in item.fault.detail
        with pytest.raises(Invalid, match=r"m0\.yaml:4: they refer to each other in a circle: Cities -> Cities"):
            await alice.apply(DERIVED.replace("name: towns", "name: Cities"))
        with pytest.raises(Invalid, match=r"m0\.yaml:4: headers\.name: 'kamu/towns' names an account"):
            await alice.apply(DERIVED.replace("name: towns", "name: kamu/towns"))
        assert alice.size("cities") == 2


BARE = """kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - {kind: AddPushSource, sourceName: gate, read: {kind: NdJson}, merge: {kind: Append}}
"""


async def test_a_query_that_cannot_be_judged_yet_says_which_input_lacks_what(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(BARE)
        second = DERIVED.replace("name: towns", "name: more").replace("datasetRef: cities", "datasetRef: towns")
        for text, why in ((DERIVED, "states no columns"), (second, "derived itself and was never pulled")):
            (item,) = (await alice.apply(text)).items
            assert item.action == "created"
            assert "is not judged yet" in item.warnings[0]
            assert why in item.warnings[0]


DECLARED = BARE.replace(
    "read: {kind: NdJson}",
    "read: {kind: NdJson, ddlSchema: ['event_time TIMESTAMP', 'n INT']}, "
    "preprocess: {kind: Sql, engine: spark, query: QUERY}",
)


async def test_a_preprocess_query_is_judged_when_it_is_applied(world: World) -> None:
    async with world.running("alice") as alice:
        (item,) = (await alice.apply(DECLARED.replace("QUERY", "select * from others"))).items
        assert (item.action, item.fault.rule) == ("failed", "unknown-input")
        assert item.fault.place.endswith(":7")
        assert alice.home.chains.datasets() == []
        (item,) = (await alice.apply(DECLARED.replace("QUERY", "select * from input"))).items
        assert (item.action, item.warnings) == ("created", ())


async def test_a_preprocess_query_over_columns_that_nobody_declared_is_judged_later(world: World) -> None:
    text = DECLARED.replace(", ddlSchema: ['event_time TIMESTAMP', 'n INT']", "").replace(
        "QUERY", "select * from input"
    )
    async with world.running("alice") as alice:
        (item,) = (await alice.apply(text)).items
        assert item.action == "created"
        assert item.warnings == (
            "the preprocess query is not judged yet, but with the first data: "
            "the read step states no columns (read.schema)",
        )


@pytest.mark.parametrize("rule", ["engine-start", "java", ALIVE, JVM_LOST, "engine"])
async def test_a_query_that_no_engine_was_asked_about_is_judged_later(
    world: World, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that does not start in its time is no fault of the query; one that ends over it may be."""
    fault = (EngineFault if rule == "engine" else EngineLost)("the engine did not start", rule=rule)

    async def nothing(request: object) -> object:
        raise fault

    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        monkeypatch.setattr(alice.engine, "validate", nothing)
        texts = (DERIVED, DECLARED.replace("name: cities", "name: more").replace("QUERY", "select * from input"))
        for text, what in zip(texts, ("the query", "the preprocess query"), strict=True):
            (item,) = (await alice.apply(text)).items
            if rule in ("engine-start", "java"):
                assert item.action == "created"
                assert item.warnings == (
                    f"{what} is not judged yet, but with the first data: the engine did not start",
                )
            else:
                assert (item.action, item.fault.rule) == ("failed", rule)


async def test_a_refusal_tells_what_the_engine_doubts_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name in double quotes is a text to Spark, which is why the event time is no time."""
    doubt = Diagnostic(
        code="quoted-name", severity=Severity.WARNING, message='"event_time" is a text', line=1, column=8,
        replace="`event_time`",
    )  # fmt: skip
    wrong = Diagnostic(
        code="event-time-type", severity=Severity.ERROR, message="event_time is string", replace="select a TIMESTAMP"
    )

    async def judged(request: object) -> ValidateResponse:
        return ValidateResponse(ok=False, diagnostics=(doubt, wrong))

    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        monkeypatch.setattr(alice.engine, "validate", judged)
        (item,) = (await alice.apply(DERIVED)).items
        assert (item.action, item.fault.rule) == ("failed", "event-time-type")
        assert item.fault.detail == 'event_time is string; "event_time" is a text'
        assert item.fault.hint == "instead: select a TIMESTAMP; `event_time`"


async def test_a_dry_run_does_nothing_and_knows_its_own_promises(world: World) -> None:
    async with world.running("alice") as alice:
        planned = await alice.apply(ROOT, DERIVED, dry_run=True)
        assert [item.action for item in planned.items] == ["created", "created"]
        assert [item.warnings for item in planned.items] == [(), ()], (
            "the query is checked over what the input shall be"
        )
        assert alice.home.chains.datasets() == []
        assert [path.stem for path in (alice.home.directory / "keys").glob("*.key")] == ["node"]


async def test_two_applies_at_once_make_one_dataset(world: World) -> None:
    import trio

    async with world.running("alice") as alice:
        results: list[str] = []

        async def one() -> None:
            results.append((await alice.apply(ROOT)).items[0].action)

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(one)
        assert results.count("created") == 1
        assert set(results) <= {"created", "unchanged", "failed"}
        assert len(alice.home.chains.datasets()) == 1
        assert len(list((alice.home.directory / "keys").glob("f*.key"))) == 1


async def test_a_changed_manifest_adds_what_changed(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        more = ROOT + "    - {kind: SetInfo, description: where people live}\n"
        (item,) = (await alice.apply(more)).items
        assert (item.action, item.changes) == ("updated", ("SetInfo",))
        assert (await alice.apply(more)).items[0].action == "unchanged"


async def test_deleting(world: World) -> None:
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        await alice.apply(ROOT, DERIVED)
        await alice.pull()
        with pytest.raises(Refused, match="towns derives from cities") as told:
            await alice.api.declarations.delete("Dataset", "cities")
        assert told.value.hint.startswith("delete it first")
        await alice.apply(DERIVED.replace("name: towns", "name: hamlets"))
        with pytest.raises(Refused, match=r"\w+, \w+ derive from cities") as told:
            await alice.api.declarations.delete("Dataset", "cities")
        assert told.value.hint.startswith("delete them first")
        await alice.api.declarations.delete("Dataset", "hamlets")
        assert alice.size("cities") > 0
        for name in ("towns", "cities"):
            await alice.api.declarations.delete("Dataset", name, purge=True)
        await alice.api.unmanaged.delete("hamlets")
        assert alice.home.chains.datasets() == []
        assert list(alice.home.objects.names()) == []
        with alice.home.database.read() as connection:
            for table in ("trust_chains", "object_references"):
                assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
        with pytest.raises(NotFound):
            await alice.dataset_view("cities")


async def test_deleting_is_one_transaction(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stops it leaves all of it."""
    async with world.running("alice") as alice:
        await alice.apply(ROOT)

        def stop(*_: object) -> None:
            raise Environment("the disk is full")

        monkeypatch.setattr("odfd.services.datasets.deletion.drop_references", stop)
        with pytest.raises(Environment):
            await alice.api.declarations.delete("Dataset", "cities")
        assert (await alice.dataset_view("cities")).blocks == 2
        assert (await alice.api.datasets.describe("cities")).source is not None


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


PUSHED = """
kind: DatasetSnapshot
version: 1
content:
  name: pushed
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read:
        kind: Csv
        header: true
        ddlSchema: ['event_time TIMESTAMP, city STRING, population BIGINT']
      merge: {kind: Append}
"""


async def test_a_push_to_what_polls_is_refused_by_its_name(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        upload = await alice.api.flow.stage("a.csv", chunks(b"event_time,city,population\n"))
        with pytest.raises(Refused) as refused:
            await alice.done(alice.api.flow.ingest("cities", wire.IngestRequest(uploads=(upload.id,))))
        assert str(refused.value) == "cities: the dataset polls its source"


@pytest.mark.parametrize("name", ["a.csv", "../../etc/passwd", "..", "", "\0", "ü" * 300])
async def test_uploads_whatever_they_are_called(world: World, name: str) -> None:
    text = "event_time,city,population\n" + "\n".join(ROWS) + "\n"
    async with world.running("alice") as alice:
        await alice.apply(PUSHED)
        upload = await alice.api.flow.stage(name, chunks(text[:30].encode(), text[30:].encode()))
        assert upload.size == len(text)
        request = wire.IngestRequest(uploads=(upload.id,))
        result = await alice.done(alice.api.flow.ingest("pushed", request))
        assert result.items[0].records == 2
        assert list((alice.home.directory / "uploads").iterdir()) == []
        with pytest.raises(NotFound, match="no upload"):
            await alice.api.flow.ingest("pushed", request)


async def test_an_upload_that_breaks_off_leaves_nothing(world: World) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise Invalid("the client went away")

    async with world.running("alice") as alice:
        with pytest.raises(Invalid):
            await alice.api.flow.stage("a.csv", broken())
        assert list((alice.home.directory / "uploads").iterdir()) == []


async def test_what_was_left_in_folders_of_work_is_gone_after_a_start(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.api.flow.stage("a.csv", chunks(b"x"))
        (alice.home.directory / "staging" / "transform-left").mkdir()
    async with world.running("alice") as alice:
        for name in ("uploads", "staging"):
            assert list((alice.home.directory / name).iterdir()) == []


@pytest.mark.parametrize("at", ["9", "#9", "9" * 30, "²", "f1620" + "0" * 64])
async def test_a_block_that_is_not_there(world: World, at: str) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        with pytest.raises(Invalid):
            await alice.api.datasets.block("cities", at)
        assert (await alice.api.datasets.block("cities", "#1")).manifest["sequenceNumber"] == 1


# Files pushed into a whole node: exactly once over lost answers, restarts, resets and compactions.


ONE_ROW = b"event_time,city,population\n2024-01-01T00:00:00Z,Graz,1\n"


async def push(node: Node, name: str, data: bytes = ONE_ROW, **terms: Any) -> wire.PullItem:
    async def chunks() -> Any:
        yield data

    upload = await node.api.flow.stage(name, chunks())
    request = wire.IngestRequest(uploads=(upload.id,), **terms)
    (item,) = (await node.done(node.api.flow.ingest("readings", request))).items
    return item


async def test_once_over_restarts_and_told_as_the_first_time(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(GATE)
        first = await push(alice, "a.csv")
        assert (first.outcome, first.records, first.message) == ("updated", 1, "")
    async with world.running("alice") as alice:
        again = await push(alice, "a.csv")
        assert (again.outcome, again.blocks, again.records) == ("up-to-date", 0, 0), "what happened now"
        assert (again.head, again.rows) == (first.head, first.rows), "and what did when it was pushed"
        told = "pushed before, as 2 blocks with 1 record, and nothing was appended now"
        assert again.message == f"{told}; --again appends it once more"
        assert alice.size("readings") == 4
        assert alice.kinds().count("dataset.appended") == 0
        assert (await push(alice, "a.csv", again=True)).head != first.head
        assert alice.size("readings") == 5


async def test_a_push_goes_with_the_blocks_that_a_reset_gives_up(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(GATE)
        await push(alice, "a.csv", id="one")
        await push(alice, "b.csv", id="two")
        size = alice.size("readings")
        await alice.done(
            alice.api.rewriting.rewrite("readings", wire.RewriteRequest(action="reset", to=f"#{size - 2}"))
        )
        assert "pushed before" in (await push(alice, "a.csv", id="one")).message
        assert (await push(alice, "b.csv", id="two")).message == ""
        assert alice.size("readings") == size


@pytest.mark.slow
async def test_a_push_is_known_in_a_compacted_history(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(GATE)
        for name in "abcd":
            await push(alice, f"{name}.csv")
        await alice.done(alice.api.rewriting.rewrite("readings", wire.RewriteRequest(action="compact")))
        size = alice.size("readings")
        for name in "abcd":
            assert "pushed before" in (await push(alice, f"{name}.csv")).message
        assert alice.size("readings") == size


async def test_a_dataset_made_anew_under_its_name_knows_nothing(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(GATE)
        await push(alice, "a.csv")
        await alice.api.declarations.delete("Dataset", "readings")
        await alice.apply(GATE)
        assert (await push(alice, "a.csv")).message == ""


# Rows of a ledger corrected by hand, on whole nodes: what is written, counted, derived, mirrored, ingested after.


KEY = {"event_time": "2024-01-02T00:00:00Z", "city": "c2"}


def ledger(manifest: str) -> str:
    return manifest.replace("merge: {kind: Append}", "merge: {kind: Ledger, primaryKey: [event_time, city]}")


async def begun(world: World, node: Node, *more: str) -> None:
    world.write("alice", "a.csv", *(f"2024-01-0{day}T00:00:00Z,c{day},{day}" for day in (1, 2, 3)), *more)
    await node.apply(ledger(ROOT), DERIVED)
    await node.pull()


async def corrected(node: Node, ref: str = "cities", **more: Any) -> wire.CorrectResult:
    request = wire.CorrectRequest(**{"key": KEY, **more})
    result: wire.CorrectResult = await node.done(node.api.flow.correct(ref, request))
    return result


def told(rows: wire.RowCounts | None) -> dict[str, Any]:
    assert rows is not None
    return {name: value for name in rows.__struct_fields__ if (value := getattr(rows, name)) not in (0, ())}


async def rows_of(node: Node, ref: str) -> list[tuple[Any, ...]]:
    """Offset, op, city and population of each record."""
    records = await node.api.datasets.tail(ref, 100)
    places = [
        [column.name for column in records.columns].index(name) for name in ("offset", "op", "city", "population")
    ]
    return [tuple(row[place] for place in places) for row in records.rows]


FIRST = [(0, 0, "c1", 1), (1, 0, "c2", 2), (2, 0, "c3", 3)]
PAIR = [(3, 2, "c2", 2), (4, 3, "c2", 20)]


async def test_a_row_is_written_as_it_was_and_as_it_is(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        chain = alice.home.chains.chain(alice.dataset("cities"))
        before = load_state(chain)
        done = await corrected(alice, values={"population": "20"})
        assert (done.outcome, done.blocks, done.records, done.dry_run) == ("corrected", 2, 2, False)
        assert (done.before["population"], done.before["offset"], done.before["op"]) == (2, 1, 0)
        assert done.after is not None
        assert (done.after["population"], done.after["offset"], done.after["op"]) == (20, 4, 3)
        assert await rows_of(alice, "cities") == FIRST + PAIR
        after = load_state(chain)
        said, data = (chain.block_at(after.size - back) for back in (2, 1))
        assert isinstance(said.event, SetDataSchema)
        assert says_changelog(said.event.schema) is True
        assert says_by_time(said.event.schema)
        assert isinstance(data.event, AddData)
        assert said.system_time == data.system_time
        assert (after.watermark, after.source_state) == (before.watermark, before.source_state)
        assert told(done.rows) == {"corrected": 1}
        assert alice.kinds().count("dataset.appended") == 2
        again = await corrected(alice, values={"population": "21"})
        assert (again.blocks, again.before["offset"], again.before["population"]) == (1, 4, 20)
        assert (await rows_of(alice, "cities"))[5:] == [(5, 2, "c2", 20), (6, 3, "c2", 21)]
        assert (await alice.done(alice.api.verification.verify("cities", wire.VerifyRequest(level="data")))).ok


async def test_a_row_is_taken_back_once(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        done = await corrected(alice, retract=True)
        assert (done.outcome, done.blocks, done.records, done.after) == ("retracted", 2, 1, None)
        assert told(done.rows) == {"retracted": 1}
        assert await rows_of(alice, "cities") == [*FIRST, (3, 1, "c2", 2)]
        size = alice.size("cities")
        for request in ({"retract": True}, {"values": {"population": "3"}}):
            with pytest.raises(NotFound, match="taken back at offset 3"):
                await corrected(alice, **request)
        assert alice.size("cities") == size


async def test_what_says_so_already_and_what_is_only_tried_writes_nothing(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        size = alice.size("cities")
        same = await corrected(alice, values={"population": "2"})
        assert (same.outcome, same.blocks, same.head, same.after) == ("unchanged", 0, None, same.before)
        tried = await corrected(alice, values={"population": "20"}, dry_run=True)
        assert (tried.outcome, tried.blocks, tried.head, tried.dry_run) == ("corrected", 0, None, True)
        assert tried.after is not None
        assert tried.after["population"] == 20
        assert alice.size("cities") == size


REFUSED: list[tuple[Any, type[Fault], str]] = [
    ({"key": {"city": "c2"}, "retract": True}, Invalid, "the key lacks event_time"),
    ({"key": {**KEY, "city": "c9"}, "retract": True}, NotFound, "no row has .*city=c9"),
    ({"key": {**KEY, "river": "Mur"}, "retract": True}, Invalid, "no column 'river'"),
    ({"key": {**KEY, "offset": "1"}, "retract": True}, Invalid, "no column 'offset'"),
    ({"key": {**KEY, "event_time": "yesterday"}, "retract": True}, Invalid, "'yesterday' is not a Timestamp"),
    ({"key": {**KEY, "event_time": "2024-01-02T00:00:00.0001Z"}, "retract": True}, Invalid, "not a Timestamp"),
    ({"values": {"population": "many"}}, Invalid, "column 'population': 'many' is not an Int64"),
    ({"values": {"population": "0x1F"}}, Invalid, "is not an Int64"),
    ({"values": {"population": "9223372036854775808"}}, Invalid, "is not an Int64"),
    ({"values": {"city": "c4"}}, Refused, "city is of the key"),
    ({"values": {"op": "0"}}, Invalid, "no column 'op'"),
    ({"values": {"population": "1"}, "retract": True}, Invalid, "either given values or retracted"),
    ({}, Invalid, "either given values or retracted"),
]


async def test_what_cannot_be_is_refused_and_nothing_is_written(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        size = alice.size("cities")
        for asked, fault, message in REFUSED:
            with pytest.raises(fault, match=message):
                await corrected(alice, **asked)
            assert alice.size("cities") == size, asked


async def test_only_ledgers_that_are_here_have_rows_to_correct(world: World) -> None:
    async with world.running("alice") as alice:
        with pytest.raises(NotFound):
            await corrected(alice, retract=True)
        await alice.apply(ROOT, DERIVED)
        world.write("alice", "a.csv", "2024-01-02T00:00:00Z,c2,2")
        await alice.pull()
        with pytest.raises(Refused, match="only rows of a source with the ledger strategy"):
            await corrected(alice, retract=True)
        with pytest.raises(Refused, match="source datasets only"):
            await corrected(alice, "towns", retract=True)


async def test_rows_of_one_key_are_told_apart_by_other_columns(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        world.write("alice", "a.csv", "2024-01-02T00:00:00Z,c2,2", "2024-01-02T00:00:00Z,c2,3")
        await alice.pull()
        await alice.apply(ledger(ROOT))
        with pytest.raises(Refused, match=r"2 rows have .*: offsets 0, 1"):
            await corrected(alice, retract=True)
        done = await corrected(alice, key={**KEY, "population": "3"}, values={"population": "4"})
        assert done.before["offset"] == 1


async def test_a_later_ingest_neither_undoes_a_correction_nor_hides_what_it_brought(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        await corrected(alice, values={"population": "20"})
        await corrected(alice, key={"event_time": "2024-01-03T00:00:00Z", "city": "c3"}, retract=True)
        rows = await rows_of(alice, "cities")
        world.write(
            "alice", "b.csv", "2024-01-02T00:00:00Z,c2,2", "2024-01-02T00:00:00Z,c2,20", "2024-01-03T00:00:00Z,c3,3",
            "2024-01-01T00:00:00Z,c1,1", "2024-01-04T00:00:00Z,c4,4",
        )  # fmt: skip
        (item,) = await alice.pull("cities")
        assert told(item.rows) == {"read": 5, "shaped": 5, "appended": 1, "unchanged": 2, "conflicting": 2}
        assert await rows_of(alice, "cities") == [*rows, (6, 0, "c4", 4)]


async def test_what_is_derived_passes_corrections_on_and_says_so_from_then_on(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        assert (await alice.api.datasets.describe("cities")).changelog is False
        chain = alice.home.chains.chain(alice.dataset("towns"))
        assert says_changelog(load_state(chain).schema.schema) is False
        await corrected(alice, values={"population": "20"})
        (item,) = await alice.pull("towns")
        assert (item.outcome, item.blocks, item.records) == ("updated", 2, 2)
        assert told(item.rows) == {"read": 2, "shaped": 2, "corrected": 1}
        assert await rows_of(alice, "towns") == FIRST + PAIR
        state = load_state(chain)
        assert says_changelog(state.schema.schema) is True
        assert chain.block_at(state.size - 2).event == state.schema
        await corrected(alice, retract=True)
        (item,) = await alice.pull("towns")
        assert (item.blocks, item.records) == (1, 1)
        done = await alice.done(alice.api.verification.verify("towns", wire.VerifyRequest(level="reproduced")))
        assert done.ok, done
        assert (await alice.pull("towns"))[0].outcome == "up-to-date"
        for name in ("cities", "towns"):
            described = await alice.api.datasets.describe(name)
            assert described.changelog is True
            assert described.rows is not None
            assert (described.rows.rows.corrected, described.rows.rows.retracted) == (1, 1)


async def test_what_was_derived_anew_after_a_correction_is_reproduced_too(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        await corrected(alice, values={"population": "20"})
        request = wire.RewriteRequest(action="keep-metadata")
        await alice.done(alice.api.rewriting.rewrite("towns", request))
        (item,) = await alice.pull("towns")
        assert item.outcome == "updated"
        assert await rows_of(alice, "towns") == FIRST + PAIR
        assert says_changelog(load_state(alice.home.chains.chain(alice.dataset("towns"))).schema.schema) is True
        done = await alice.done(alice.api.verification.verify("towns", wire.VerifyRequest(level="reproduced")))
        assert done.ok, done


async def test_a_mirror_follows_and_cannot_correct(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await begun(world, alice)
        await alice.pull("towns")
        await world.spread(alice, "cities", "towns")
        for name in ("cities", "towns"):
            await bob.mirror(alice.dataset(name), name)
        await corrected(alice, values={"population": "20"})
        await alice.pull("towns")
        for name in ("cities", "towns"):
            await bob.pull(name)
            assert await rows_of(bob, name) == FIRST + PAIR
        done = await bob.done(bob.api.verification.verify("towns", wire.VerifyRequest(level="reproduced")))
        assert done.ok, done
        with pytest.raises(Refused, match="not this node's own"):
            await corrected(bob, values={"population": "21"})


async def test_a_manifest_that_declares_the_schema_again_keeps_what_it_says_of_changes(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        chain = alice.home.chains.chain(alice.dataset("cities"))
        schema = load_state(chain).schema.schema
        said = {"kind": "SetDataSchema", "schema": msgspec.to_builtins(schema)}
        manifest = f"{ledger(ROOT)}    - {json.dumps(said)}\n"
        assert (await alice.apply(manifest)).items[0].action == "unchanged"
        await corrected(alice, values={"population": "20"})
        size = alice.size("cities")
        assert (await alice.apply(manifest)).items[0].action == "unchanged"
        assert alice.size("cities") == size
        said["schema"]["extra"] = {CHANGELOG: False}
        denied = f"{ledger(ROOT)}    - {json.dumps(said)}\n"
        (item,) = (await alice.apply(denied)).items
        assert (item.action, item.fault is not None and item.fault.rule) == ("failed", "schema-changelog-stays")


async def test_a_record_that_was_corrected_says_who_did_it(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        await corrected(alice, values={"population": "20"})
        await alice.pull("towns")
        for offset, by_hand in ((1, False), (3, True), (4, True)):
            lineage = await alice.done(alice.api.lineage.trace("towns", wire.LineageRequest(record=offset)))
            (origin,) = [record.origin for record in lineage.records if record.origin is not None]
            assert origin.by_hand is by_hand


async def test_the_key_is_found_among_many_files_by_reading_one(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ledger(ROOT))
        for day in range(1, 8):
            world.write("alice", f"{day}.csv", f"2024-01-0{day}T00:00:00Z,c{day},{day}")
            await alice.pull()
        read: list[str] = []

        def counting(path: Any) -> Any:
            read.append(path.name)
            return open_slice(path)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("odfd.ingest.correction.open_slice", counting)
            await corrected(alice, values={"population": "20"})
        assert len(read) == 1


async def test_compaction_keeps_corrections(world: World) -> None:
    async with world.running("alice") as alice:
        await begun(world, alice)
        await corrected(alice, values={"population": "20"})
        await corrected(alice, values={"population": "21"})
        rows = await rows_of(alice, "cities")
        done = await alice.done(alice.api.rewriting.rewrite("cities", wire.RewriteRequest(action="compact")))
        assert done.outcome == "rewritten"
        assert await rows_of(alice, "cities") == rows
        assert (await corrected(alice, values={"population": "22"})).before["offset"] == 6
