"""From manifests to data: apply, pull, ingest, delete, on a node with the small engine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from chain.errors import Environment, Invalid, NotFound, Refused
from engines.contract import Diagnostic, Severity, ValidateResponse
from engines.errors import ALIVE, JVM_LOST, EngineFault, EngineLost
from odfd.control import wire
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import World

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
