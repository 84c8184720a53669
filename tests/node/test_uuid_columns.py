"""A column of UUIDs through each door of a node; rows of rare types are answered, or refused by name."""

from __future__ import annotations

import decimal
import subprocess
import sys
import uuid
from pathlib import Path

import deltalake
import duckdb
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import odfd_client
from config import model
from odfd.control import wire
from odfd_client import col, connect
from odfd_client.spark import _spark_schema
from worlds.eventually import PATIENCE
from worlds.node_world import Node, World
from worlds.served_node import away, served

ONE = uuid.UUID("123e4567-e89b-12d3-a456-426614174000")
TEXTS = [str(ONE), None]
TIMES = pa.array([0, 1000], pa.timestamp("ms", "UTC"))
DEVICES = pa.table({"event_time": TIMES, "id": pa.array([ONE.bytes, None], pa.uuid())})
ROOT = """kind: DatasetSnapshot
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
    await node.apply(ROOT)
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
                with pytest.raises(odfd_client.Invalid, match="'big' is decimal256") as refused:
                    await away(ask)
                assert refused.value.rule == "query-schema"
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
