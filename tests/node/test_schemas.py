"""Schemas and transforms of datasets that have rows, columns of rare types, and events of newer schemas."""

from __future__ import annotations

import decimal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, Union, get_args

import deltalake
import duckdb
import httpx
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import odfd_client
from chain.codec import blocks, flat
from chain.data.parquet import write_slice
from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import UnknownEvent
from chain.model.events import MetadataEvent, SetDataSchema, SetPollingSource
from chain.model.wire import I32, I64, U64, Time
from chain.multihash import Multihash
from chain.state import load_state
from chain.store.base import Append
from config import model
from engines.contract import InvalidQuery
from odfd.cli.offline.block import describe
from odfd.control import wire
from odfd.queries.log_files import files_of_log
from odfd_client import col, connect
from odfd_client.spark import _spark_schema
from worlds.eventually import PATIENCE
from worlds.faults import breaks
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World
from worlds.served_node import away, served

# Columns added to roots on whole nodes: old rows, derivations and mirrors go on; what is refused changes nothing.


async def altered(node: Node, *columns: str, ref: str = "cities", **more: Any) -> wire.AlterSchemaResult:
    request = wire.AlterSchemaRequest(**{"action": "add", "columns": columns, **more})
    result: wire.AlterSchemaResult = await node.done(node.api.flow.alter_schema(ref, request))
    return result


def begun(world: World) -> None:
    world.write("alice", "a.csv", *(f"2024-01-0{day}T00:00:00Z,c{day},{day}" for day in (1, 2, 3)))


async def test_it_is_shown_and_then_done(world: World) -> None:
    async with world.running("alice") as alice:
        begun(world)
        await alice.apply(ROOT, DERIVED)
        await alice.pull()
        chain = alice.home.chains.chain(alice.dataset("cities"))
        before = chain.head()
        plan = await altered(alice, "mayor STRING", dry_run=True)
        assert plan.outcome == "planned"
        assert plan.events == ("SetPollingSource", "SetDataSchema")
        assert [(column.name, column.optional) for column in plan.added] == [("mayor", True)]
        assert (plan.records, plan.derivations) == (3, ("towns",))
        assert chain.head() == before
        done = await altered(alice, "mayor STRING")
        assert (done.outcome, done.blocks) == ("altered", 2)
        assert chain.head().size == before.size + 2
        assert [type(chain.block_at(before.size + each).event) for each in (0, 1)] == [SetPollingSource, SetDataSchema]
        records = await alice.api.datasets.tail("cities", 10)
        assert [row[-1] for row in records.rows] == [None] * 3
        assert records.columns[-1].name == "mayor"
        with breaks("schema-columns"):
            await altered(alice, "mayor STRING")
        assert chain.head().size == before.size + 2
        assert [item.outcome for item in await alice.pull("towns")] == ["up-to-date"]
        path = world.write("alice", "b.csv")
        path.write_text("event_time,city,population,mayor\n2024-01-04T00:00:00Z,c4,4,Ada\n")
        await alice.pull()
        assert (await alice.api.datasets.tail("cities", 1)).rows[0][-1] == "Ada"
        news = wire.SlicesRequest(dataset="cities", after=wire.LogPosition(offset=2))
        plan = alice.api.queries._planner.plan
        assert len(files_of_log(alice.home, plan, news).view.slices) == 1, "files with the newest columns are the rows"
        with pytest.raises(Refused, match="not a plain log"):
            files_of_log(alice.home, plan, wire.SlicesRequest(dataset="cities", after=wire.LogPosition(offset=1)))
        towns = await alice.api.datasets.tail("towns", 10)
        assert [column.name for column in towns.columns][-1] == "population"
        assert len(towns.rows) == 4


async def test_others_and_wrong_wishes_change_nothing(world: World) -> None:
    """Attack T-SOURCE-03: a schema altered while an ingest or another writer runs, or by `--as` over an existing
    dataset.

    Defence: the change waits for the dataset's lock and is committed on the head of its plan; an existing name is
    refused.
    """
    async with world.running("alice") as alice:
        begun(world)
        await alice.apply(ROOT, DERIVED)
        await alice.pull()
        heads = {name: alice.home.chains.chain(alice.dataset(name)).head() for name in ("cities", "towns")}
        for ref, columns, more, rule in (
            ("towns", ("a INT",), {}, "root-only"),
            ("cities", ("city", "town"), {"action": "rename"}, "schema-compatible"),
            ("cities", ("city",), {"action": "drop", "derived": "towns"}, "schema-as"),
            ("cities", ("population BIGINT",), {"action": "widen", "derived": "v2"}, "schema-widen"),
            ("cities", ("a INT NOT NULL",), {}, "schema-compatible"),
        ):
            with breaks(rule):
                await altered(alice, *columns, ref=ref, **more)
        with pytest.raises(NotFound):
            await altered(alice, "a INT", ref="nobody")
        assert {name: alice.home.chains.chain(alice.dataset(name)).head() for name in heads} == heads


async def test_a_mirror_follows_and_may_not_alter(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        begun(world)
        await alice.apply(ROOT)
        await alice.pull()
        await alice.publish()
        await bob.mirror(alice.dataset("cities"), "cities")
        await altered(alice, "mayor STRING")
        await bob.pull("cities")
        state = load_state(bob.home.chains.chain(alice.dataset("cities")))
        assert state.schema is not None
        assert state.schema.schema is not None
        assert state.schema.schema.fields[-1].name == "mayor"
        with breaks("schema-owner", Refused):
            await altered(bob, "a INT")


async def test_the_manifest_of_what_is_derived_is_made_and_nothing_else(world: World) -> None:
    async with world.running("alice") as alice:
        begun(world)
        await alice.apply(ROOT)
        await alice.pull()
        plan = await altered(alice, "city", "town", action="rename", derived="v2")
        assert plan.manifest is not None
        assert "`city` as `town`" in plan.manifest
        assert plan.outcome == "planned"
        with pytest.raises(NotFound):
            alice.dataset("v2")


# Another transform for a dataset that has rows, through apply and pull of a node with the small engine.


ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
MORE = ("2024-01-03T00:00:00Z,Wels,60000",)


def two_sources() -> tuple[str, str, str]:
    """The root, the same under another name, and one with another column."""
    other = ROOT.replace("name: cities", "name: villages")
    wider = other.replace("name: villages", "name: hamlets").replace("population BIGINT", "people BIGINT")
    return ROOT, other, wider


def derived(source: str, version: str = "") -> str:
    text = DERIVED.replace("datasetRef: cities, alias: cities", f"datasetRef: {source}, alias: {source}")
    text = text.replace("from cities", f"from {source}")
    return str(text.replace("engine: spark", f"engine: spark\n        version: '{version}'") if version else text)


async def made_by_another(alice: Node) -> str:
    """Its history is of an engine that was replaced since, as by an upgrade; returns the digest of that one."""
    here, alice.engine.digest = alice.engine.digest, "sha256:" + "7" * 64
    await alice.apply(ROOT, DERIVED)
    await alice.pull()
    old, alice.engine.digest = alice.engine.digest, here
    return str(old)


async def reproduced(alice: Node) -> bool:
    report = await alice.done(alice.api.verification.verify("towns", wire.VerifyRequest(level="reproduced")))
    return bool(report.ok)


async def test_another_source_of_the_same_columns_takes_over(world: World) -> None:
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        await alice.apply(*two_sources(), derived("cities"))
        await alice.pull()
        (item,) = (await alice.apply(derived("villages"), dry_run=True)).items
        assert (item.action, item.changes) == ("updated", ("SetTransform",))
        size = alice.size("towns")
        (item,) = (await alice.apply(derived("villages"))).items
        assert (item.action, item.changes, alice.size("towns")) == ("updated", ("SetTransform",), size + 1)
        assert (await alice.apply(derived("villages"))).items[0].action == "unchanged"
        (item,) = await alice.pull("towns")
        assert (item.outcome, item.records) == ("updated", 2)
        await alice.take_in(files={"b.csv": MORE}, pulls=["villages", "towns"])
        assert (await alice.api.datasets.tail("towns", 10)).rows[-1][4:] == ("Wels", 60000)
        assert await reproduced(alice)


async def test_other_columns_are_refused_with_the_way_to_derive_anew(world: World) -> None:
    world.write("alice", "a.csv", *ROWS)
    sources = two_sources()
    async with world.running("alice") as alice:
        await alice.apply(*sources[:2], derived("cities"))
        await alice.pull()
        await alice.apply(sources[2])
        size = alice.size("towns")
        (item,) = (await alice.apply(derived("hamlets"))).items
        assert (item.action, item.fault.rule, alice.size("towns")) == ("failed", "transform-evolution", size)
        assert "no 'population'" in item.fault.detail
        assert "odfctl reset towns '#1', then apply it again and odfctl pull towns" in item.fault.hint


async def test_the_pin_stays_until_somebody_writes_another(world: World) -> None:
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        await made_by_another(alice)
        assert (await alice.apply(derived("cities"))).items[0].action == "unchanged"
        (item,) = (await alice.apply(derived("cities", alice.engine.digest))).items
        assert item.action == "updated"


async def proof(alice: Node, **more: Any) -> wire.ProofReport:
    done: wire.ProofReport = await alice.done(alice.api.proving.prove("towns", wire.ProveRequest(**more)))
    return done


async def test_an_engine_that_gives_the_same_is_pinned_from_then_on(world: World) -> None:
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        old = await made_by_another(alice)
        digest, size = (await alice.engine.identity()).digest, alice.size("towns")
        found = await proof(alice, dry_run=True)
        assert (found.ok, found.transforms, found.pinned, found.recorded) == (True, 1, (old,), None)
        found = await proof(alice)
        assert (found.ok, found.engine.digest, alice.size("towns")) == (True, digest, size + 1)
        assert found.before == old
        last = alice.home.chains.chain(alice.dataset("towns")).block_at(size)
        assert (found.recorded, last.event.transform.version) == (str(last.hash), digest)
        assert (await proof(alice)).recorded is None, "it is pinned already"
        await alice.take_in(files={"b.csv": MORE})
        assert (await alice.api.datasets.tail("towns", 10)).rows[-1][4:] == ("Wels", 60000)
        assert (await proof(alice)).transforms == 2
        report = await alice.done(alice.api.verification.verify("towns", wire.VerifyRequest(level="reproduced")))
        assert [(each.rule, each.block.sequence_number) for each in report.failures] == [("engine-not-here", 3)]
        assert "the one here gives the same" in report.failures[0].message, "the block before is of the other engine"


async def test_an_engine_that_gives_something_else_is_not_taken(world: World) -> None:
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        await made_by_another(alice)
        size = alice.size("towns")

        def lie(request: Any) -> None:
            path = Path(request.new_data_path)
            table = pq.read_table(path)
            path.unlink()
            write_slice(table.set_column(5, table.schema.field(5), pa.array([0] * table.num_rows, pa.int64())), path)

        alice.engine.wrong = lie
        found = await proof(alice)
        assert (found.ok, found.recorded, alice.size("towns")) == (False, None, size)
        assert [(each.rule, each.block.sequence_number) for each in found.failures] == [("transform-reproduced", 3)]


async def test_an_engine_that_refuses_the_query_is_not_taken(world: World) -> None:
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        await made_by_another(alice)

        async def refuse(*_: Any) -> InvalidQuery:
            return InvalidQuery(message="no such function", rule="function", hint="write another", place="line 1")

        alice.engine.transform = refuse
        found = await proof(alice)
        assert (found.ok, found.recorded, found.transforms) == (False, None, 0)
        assert [each.message for each in found.failures] == ["line 1: no such function; write another"]


async def test_a_refusal_of_the_engine_is_shown_in_its_parts(world: World) -> None:
    """By a pull, a verification, and when a transform is applied: rule, hint and place are no part of the message."""
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        await alice.apply(ROOT, DERIVED)
        await alice.pull()

        async def refuse(*_: Any) -> InvalidQuery:
            return InvalidQuery(message="no such day", rule="no-day", hint="name another", place="line 2, column 8")

        alice.engine.transform = alice.engine.migrate = alice.engine.derive_provenance = refuse
        with pytest.raises(
            Invalid, match="a step of towns cannot be re-run here: line 2, column 8: no such day"
        ) as told:
            await alice.done(alice.api.verification.verify("towns", wire.VerifyRequest(level="reproduced")))
        assert (told.value.rule, told.value.hint) == ("no-day", "name another")
        with pytest.raises(Invalid, match="no such day") as told:
            await alice.done(alice.api.lineage.trace("towns", wire.LineageRequest(record=0)))
        assert (told.value.rule, told.value.hint, told.value.place) == (
            "no-day", "name another", "towns, line 2, column 8",
        )  # fmt: skip
        world.write("alice", "b.csv", *ROWS)
        (item,) = [each for each in await alice.pull() if each.ref == "towns"]
        assert item.fault is not None
        assert (item.fault.detail, item.fault.rule) == ("no such day", "no-day")
        assert (item.fault.hint, item.fault.place) == ("name another", "towns, line 2, column 8")
        (item,) = (await alice.apply(derived("cities", "sha256:" + "8" * 64), force=True)).items
        assert (item.fault.detail, item.fault.rule, item.fault.hint) == ("no such day", "no-day", "name another")


async def test_a_root_has_nothing_to_prove(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        with pytest.raises(Invalid, match="has no transform"):
            await alice.done(alice.api.proving.prove("cities", wire.ProveRequest()))


# A column of UUIDs through each door of a node; rows of rare types are answered, or refused by name.


ONE = uuid.UUID("123e4567-e89b-12d3-a456-426614174000")
TEXTS = [str(ONE), None]
TIMES = pa.array([0, 1000], pa.timestamp("ms", "UTC"))
DEVICES = pa.table({"event_time": TIMES, "id": pa.array([ONE.bytes, None], pa.uuid())})
OF_FILES = """kind: DatasetSnapshot
version: 1
content:
  name: devices
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: FilesGlob, path: '*.parquet', order: ByName}
      read: {kind: Parquet}
      merge: {kind: Append}
"""
HTTP = model.Http(listen=("127.0.0.1:0",), query=True)
FLIGHT = model.Flight(listen=("127.0.0.1:0",))


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a short name: a socket's may have 107 bytes."""
    return tmp_path_factory.mktemp("c")


async def filled(world: World, node: Node, rows: pa.Table) -> wire.PullItem:
    pq.write_table(rows, world.folder / "alice" / "source" / "a.parquet")
    await node.apply(OF_FILES)
    (item,) = await node.pull()
    await node.publish("devices")
    assert isinstance(item, wire.PullItem)
    return item


def odfctl(path: Path, *words: str) -> str:
    program = "import sys; from odfd.cli import start; sys.exit(start())"
    done = subprocess.run([sys.executable, "-c", program, "--socket", path, *words], capture_output=True, text=True)
    return done.stdout + done.stderr


async def test_the_python_client_reads_texts(world: World, folder: Path) -> None:
    """By a query, by slices and as new rows; Spark's source has the same columns."""
    async with world.running("alice") as alice:
        assert (await filled(world, alice, DEVICES)).fault is None
        async with served(alice, folder) as path:
            await away(lambda: read(connect(path)))


def read(client: odfd_client.Client) -> None:
    devices = client.open("devices")
    found = devices.to_arrow()
    assert (found.schema.field("id").type, found["id"].to_pylist()) == (pa.string(), TEXTS)
    assert devices.current().to_arrow()["id"].to_pylist() == TEXTS
    assert devices.to_pandas()["id"].tolist() == TEXTS
    assert [each.batch["id"].to_pylist() for each in devices.listen(follow=False)] == [TEXTS]
    for same in (ONE, str(ONE)):
        for where in (col("id") == same, col("id").isin([same])):
            assert devices.where(where).select("id").to_arrow()["id"].to_pylist() == TEXTS[:1]
        assert client.sql("select id from devices where id = ?", [same]).to_arrow()["id"].to_pylist() == TEXTS[:1]
    with duckdb.connect() as connection:
        assert devices.select("id").duckdb(connection, "mine").fetchall() == [(each,) for each in TEXTS]
    assert _spark_schema(found.schema)["id"].dataType.simpleString() == "string"


async def test_exports_of_rows_keep_the_type_where_the_format_has_it(world: World, folder: Path) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice, DEVICES)
        async with served(alice, folder) as path:
            await away(lambda: export(path, folder))


def export(path: Path, folder: Path) -> None:
    for name in ("rows.parquet", "rows.csv", "rows.ndjson"):
        odfctl(path, "export", "devices", str(folder / name))
    odfctl(path, "export", "devices", str(folder / "hub"), "--format", "huggingface")
    odfctl(path, "export", "devices", str(folder / "lake"), "--table", "delta")
    rows = pq.read_table(folder / "rows.parquet")
    assert (rows.schema.field("id").type, rows["id"].to_pylist()) == (pa.uuid(), [ONE, None])
    leaf = pq.ParquetFile(folder / "rows.parquet").schema.column(rows.column_names.index("id"))
    assert (leaf.logical_type.type, leaf.physical_type) == ("UUID", "FIXED_LEN_BYTE_ARRAY")
    ((kind,),) = duckdb.sql(f"select typeof(id) from '{folder}/rows.parquet' limit 1").fetchall()
    assert kind == "UUID"
    assert str(ONE) in (folder / "rows.csv").read_text()
    assert str(ONE) in (folder / "rows.ndjson").read_text()
    assert pq.read_table(folder / "hub" / "data")["id"].to_pylist() == TEXTS, "its library knows no such type"
    assert "dtype: string" in (folder / "hub" / "README.md").read_text()
    lake = deltalake.DeltaTable(str(folder / "lake"))
    assert lake.schema().to_arrow().field("id").type in (pa.binary(), pa.binary(16))


async def test_strangers_get_texts_over_http_and_flight(world: World) -> None:
    async with world.running("alice", http=HTTP, flight=FLIGHT) as alice:
        await filled(world, alice, DEVICES)
        (url,), (grpc,) = alice.parts.site.urls, alice.parts.doors["flight"].urls
        async with httpx.AsyncClient(base_url=str(url), timeout=PATIENCE) as client:
            for form in ("ArrowJson", "OdfJson"):
                asked = {"query": "select id from devices", "include": ["schema"], "schemaFormat": form}
                output = (await client.post("/query", json=asked)).json()["output"]
                assert output["data"] == [{"id": each} for each in TEXTS]
                assert "String" in str(output["schema"]) or "Utf8" in str(output["schema"])
            tail = (await client.get("/devices/tail")).json()
            assert [row["id"] for row in tail["data"]] == TEXTS
        found = await away(lambda: connect(str(grpc)).open("devices").to_arrow())
        assert (found.schema.field("id").type, found["id"].to_pylist()) == (pa.string(), TEXTS)


async def test_a_record_is_shown_with_its_text(world: World) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice, DEVICES)
        traced = await alice.done(alice.api.lineage.trace("devices", wire.LineageRequest(record=0)))
        assert traced.records[0].row["id"] == str(ONE)
        detail = await alice.api.datasets.describe("devices", profile=True)
        (known,) = [each for each in detail.profile.columns if each.name == "id"]
        assert (known.type, known.minimum, known.nulls) == ("UUID", str(ONE), 1)


async def test_rare_types_are_answered(world: World, folder: Path) -> None:
    inner = pa.struct([("at", pa.binary(16))])
    rare = DEVICES.append_column("clock", pa.array([1, None], pa.time64("us")))
    rare = rare.append_column("fixed", pa.array([b"abc", None], pa.binary(3)))
    rare = rare.append_column("inside", pa.array([{"at": ONE.bytes}, None], inner).cast(pa.struct([("at", pa.uuid())])))
    async with world.running("alice") as alice:
        assert (await filled(world, alice, rare)).fault is None
        schema = await alice.api.datasets.schema("devices")
        assert [each.type for each in schema.fields if each.name == "inside"] == ["Struct(at: UUID?)"]
        async with served(alice, folder) as path:
            row = await away(lambda: connect(path).open("devices").to_arrow().to_pylist()[0])
            assert (row["fixed"], row["inside"], str(row["clock"])) == (b"abc", {"at": str(ONE)}, "00:00:00.000001")
            told = await away(lambda: odfctl(path, "export", "devices", str(folder / "lake"), "--table", "delta"))
            assert "'clock' is of type Time, which Delta has no type for" in told


async def test_a_decimal_that_sql_has_not_is_named(world: World, folder: Path) -> None:
    wide = DEVICES.append_column("big", pa.array([decimal.Decimal("1.5"), None], pa.decimal256(50, 2)))
    async with world.running("alice") as alice:
        assert (await filled(world, alice, wide)).fault is None
        async with served(alice, folder) as path:
            for ask in (
                lambda: connect(path).open("devices").to_arrow(),
                lambda: connect(path).sql("select id from devices").to_arrow(),
            ):
                with breaks("query-schema", odfd_client.Invalid, match="'big' is decimal256"):
                    await away(ask)
            assert "1.50" in await away(lambda: odfctl(path, "tail", "devices"))


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, None], pa.duration("ms")),
        pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        pa.array([[{"a": 1}], None], pa.list_(pa.struct([("a", pa.int32())]))),
    ],
    ids=lambda values: str(values.type),
)
async def test_what_has_no_logical_hash_is_refused_before_rows_are_written(world: World, values: pa.Array) -> None:
    async with world.running("alice") as alice:
        item = await filled(world, alice, DEVICES.append_column("odd", values))
        assert item.fault is not None
        assert (item.fault.rule, item.fault.place) == ("logical-hash-type", "column 'odd'")
        assert alice.size("devices") == 2


# A block with an event of a newer schema: the daemon shows of it what the tool without a daemon shows.


class Newer(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="Newer"):
    said: str


def newer_block(after: Multihash, number: int, at: Instant) -> bytes:
    event: Any = Union[(*get_args(MetadataEvent), Newer)]
    names = ("system_time", Time), ("prev_block_hash", Multihash | None), ("sequence_number", U64), ("event", event)
    content = msgspec.defstruct("Content", names, frozen=True)
    manifest = msgspec.defstruct("Manifest", [("kind", I64), ("version", I32), ("content", bytes)])
    inner = flat.encode(content(at, after, number, Newer(said="what we do not know")))
    return flat.encode(manifest(blocks.KIND, blocks.CURRENT_VERSION, inner))


async def test_an_unknown_event_is_shown_by_its_number(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        dataset: DatasetId = alice.dataset("cities")
        head = alice.home.chains.chain(dataset).head()
        block = blocks.decode_block(newer_block(head.hash, head.size, alice.clock.now()))
        assert block.event == UnknownEvent(variant=14)
        alice.home.chains.commit([Append(dataset=dataset, expected=head, blocks=[block])])
        told = await alice.api.datasets.block("cities", f"#{head.size}")
        offline = describe(block)
        assert told.manifest == offline["content"]
        assert told.manifest["event"] == {"kind": "UnknownEvent", "variant": 14}
        assert (told.hash, told.size, told.unknown_fields) == (offline["hash"], offline["size"], ())
        [logged] = await alice.api.datasets.log("cities", (), 1, None)
        assert logged.event == "Unknown(14)"
