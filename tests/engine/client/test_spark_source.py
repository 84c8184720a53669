"""The format ``odf`` in Spark, against a real node: batches at one cut, and streams whose rows come once."""

from __future__ import annotations

import hashlib
import itertools
import os
import pickle
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JError
from pyspark.errors import (
    AnalysisException,
    PySparkAttributeError,
    PySparkException,
    PythonException,
    StreamingQueryException,
)
from pyspark.sql.datasource import EqualTo, GreaterThan, IsNotNull, Not

from odfd.control import wire
from odfd_client import Environment, Invalid, NotFound, Pin
from odfd_client import spark as spark_source
from odfd_client.slice_files import SliceFiles
from odfd_client.spark import OdfDataSource, _parts, _Rows, scan
from worlds import node_world
from worlds.served_node import away, served

CLIENT = Path(__file__).parents[3] / "client"
KAMU = Path(__file__).parents[2] / "golden" / "kamu"
ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000", "2024-01-03T00:00:00Z,Wels,62000")
MORE = ("2024-01-04T00:00:00Z,Steyr,38000", "2024-01-05T00:00:00Z,Enns,")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Any]:
    made = node_world.World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def spark(jvm: Any) -> Any:
    session = jvm.session()
    session.sparkContext.environment["PYTHONPATH"] = str(CLIENT)
    session.dataSource.register(OdfDataSource)
    return session


async def test_spark_reads_what_the_node_has(world: Any, spark: Any, tmp_path: Path, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("c")
    async with world.running("alice") as alice:
        world.write("alice", "a.csv", *ROWS)
        await alice.apply(node_world.ROOT)
        await alice.pull()
        async with served(alice, folder) as path:
            stream = Stream(spark, path, tmp_path)
            assert await away(lambda: batch(spark, path)) == ["Graz", "Linz", "Wels"]
            assert await away(stream.run) == ["Graz", "Linz", "Wels"]
            world.write("alice", "b.csv", *MORE)
            await alice.pull("cities")
            assert await away(lambda: batch(spark, path, atBlock=first_block(alice))) == ["Graz", "Linz", "Wels"]
            await away(lambda: as_people_ask(spark, path))
            await away(lambda: scans(spark, path, first_block(alice)))
            assert await away(stream.run) == ["Enns", "Graz", "Linz", "Steyr", "Wels"]
            assert await away(stream.run_again) == ["Enns", "Graz", "Linz", "Steyr", "Wels"], "a batch came twice"


async def test_offsets_of_a_stream_are_positions(world: Any, tmp_path_factory: Any) -> None:
    async with world.running("alice") as alice:
        await alice.apply(node_world.ROOT)
        for rows in (ROWS, MORE):
            world.write("alice", f"{rows[0]}.csv".replace(":", ""), *rows)
            await alice.pull("cities")
        async with served(alice, tmp_path_factory.mktemp("c")) as path:
            await away(lambda: positions(path))


async def test_a_stream_has_all_shards_at_one_time(world: Any, tmp_path_factory: Any) -> None:
    async with world.running("alice") as alice:
        await alice.apply(node_world.ROOT)
        await alice.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
        world.write("alice", "a.csv", *ROWS)
        await alice.pull("cities")
        wanted = wire.RenditionRequest(origin="snapshot", shards=3, by=("city",))
        await alice.done(alice.api.renditions.create("cities", wanted))
        await alice.done(alice.api.renditions.hand_over("cities", 1, wire.HandoverRequest()))
        async with served(alice, tmp_path_factory.mktemp("c")) as path:
            source = await away(lambda: OdfDataSource({"node": str(path), "path": "cities", "partitions": "7"}))
            schema = await away(source.schema)
            reader = source.streamReader(schema)
            start = await away(reader.latestOffset)
            assert len(start["shards"]) == 3
            assert await away(lambda: read(reader, reader.initialOffset(), start)) == ["Graz", "Linz", "Wels"]
            world.write("alice", "b.csv", *MORE)
            await alice.pull("cities")
            end = await away(reader.latestOffset)
            assert await away(lambda: read(reader, start, end)) == ["Enns", "Steyr"]
            assert await away(lambda: read(reader, end, end)) == []
            whole = source.reader(schema)
            found = [row for each in await away(whole.partitions) for row in await away(lambda e=each: rows(whole, e))]
            assert sorted(found) == ["Enns", "Graz", "Linz", "Steyr", "Wels"]
            with pytest.raises(NotFound, match="history was rewritten"):
                await away(lambda: reader.partitions({**end, "shards": end["shards"][:2]}, end))


def test_spark_reads_a_folder_without_a_node(spark: Any, tmp_path: Path) -> None:
    """A batch and a stream of what kamu wrote: the rows that Spark's own reader finds in the same slices."""
    slices = [str(each) for each in (KAMU / "flights" / "data").iterdir()]
    wanted = sorted(spark.read.parquet(*slices).select("offset", "op").collect())
    asked = {"repository": str(KAMU), "partitions": "2"}
    found = spark.read.format("odf").options(**asked).load("flights")
    assert found.rdd.getNumPartitions() == 2
    assert sorted(found.select("offset", "op").collect()) == wanted
    assert found.where("offset > 2").count() == len([row for row in wanted if row.offset > 2])
    writer = spark.readStream.format("odf").options(**asked).load("flights").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    writer.start(str(tmp_path / "out")).awaitTermination()
    assert sorted(spark.read.parquet(str(tmp_path / "out")).select("offset", "op").collect()) == wanted


async def test_a_damaged_slice_is_told_by_name(world: Any, spark: Any, tmp_path: Path, tmp_path_factory: Any) -> None:
    """Attack T-DISK-01: a slice whose bytes a disk lost, which a task of Spark decodes itself.

    Defence: the client asks the node to hash the slices again, and the read fails by dataset and block.

    Neither as rows nor as a trace of Java alone; what does not read the slice goes on.
    """
    folder = tmp_path_factory.mktemp("c")
    async with world.running("alice") as alice:
        await alice.apply(node_world.ROOT)
        for part in "ab":
            names = (hashlib.sha256(f"{part}{number}".encode()).hexdigest() for number in range(3000))
            world.write("alice", f"{part}.csv", *(f"2024-01-01T00:00:00Z,{name},1" for name in names))
            await alice.pull("cities")
        async with served(alice, folder) as path:
            assert len(await away(lambda: batch(spark, path))) == 6000
            place = lose_bytes(alice)
            said = f"cities block #{place}: .* is damaged on disk .*odfctl pull cities --repair"
            with pytest.raises(PythonException, match=said):
                await away(lambda: batch(spark, path))  # the node hashed it a moment ago, and the time is the same
            for way in (
                lambda: batch(spark, path, columns="city"),
                lambda: batch(spark, path, current="true"),
                lambda: batch(spark, path, atBlock=f"#{place}"),
                Stream(spark, path, tmp_path).run,
            ):
                with pytest.raises((AnalysisException, PythonException, StreamingQueryException), match=said):
                    await away(way)
            assert len(await away(lambda: batch(spark, path, atBlock=first_block(alice)))) == 3000


async def test_a_scan_names_the_slice_that_spark_cannot_read(world: Any, spark: Any, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("c")
    async with world.running("alice") as alice:
        names = (hashlib.sha256(f"{number}".encode()).hexdigest() for number in range(3000))
        world.write("alice", "a.csv", *(f"2024-01-01T00:00:00Z,{name},1" for name in names))
        await alice.apply(node_world.ROOT)
        await alice.pull()
        async with served(alice, folder) as path:

            def scanned() -> None:
                with scan(spark, "cities", node=str(path)) as found:
                    assert found.count() == 3000
                    place.append(lose_bytes(alice))
                    found.collect()

            place: list[int] = []
            with pytest.raises(Environment, match=r"is damaged on disk .*odfctl pull cities --repair") as told:
                await away(scanned)
            assert told.value.place == f"cities block #{place[0]}"
            assert isinstance(told.value.__cause__, Py4JError | PySparkException)


def lose_bytes(alice: Any) -> int:
    """As a disk does, which no time of the file shows; the number of the newest block, whose slice it is."""
    last = alice.home.chains.chain(alice.dataset("cities")).last_of(("AddData",))
    file = alice.home.objects.path(last.event.new_data.physical_hash)
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    file.chmod(0o600)
    with file.open("r+b") as written:
        written.seek(-8, os.SEEK_END)
        written.write(bytes(8))
    os.utime(file, ns=times)
    return int(last.sequence_number)


@given(st.integers(0, 50), st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(0, 60), st.integers(1, 3))
def test_tasks_have_each_offset_once(first: int, slices: list[int], wanted: int, chains: int) -> None:
    spans = [(high - rows, high - 1) for rows, high in zip(slices, itertools.accumulate(slices), strict=True)]
    last = spans[-1][1]
    for files in (None, SliceFiles(mock.Mock(), pa.schema([]), [], 0)):
        if files is not None:
            files.spans = spans
        found = _parts(Pin("cities", "did:odf:x", "f1620", 1), files, (first, last), wanted, chains)
        offsets = [range(each.first, each.last + 1) for each in found if isinstance(each, _Rows)]
        assert all(offsets), "a task without rows"
        assert [*itertools.chain(*offsets)] == [*range(first, last + 1)]
        assert len(found) <= max(1, wanted // chains)


def test_tasks_begin_with_slices_that_are_near() -> None:
    files = SliceFiles(mock.Mock(), pa.schema([]), [], 0)
    files.spans = [(0, 399), (400, 899), (900, 999)]
    found = _parts(Pin("cities", "did:odf:x", "f1620", 1), files, (0, 999), 2, 1)
    assert [(each.first, each.last) for each in found if isinstance(each, _Rows)] == [(0, 399), (400, 999)]


def read(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    return sorted(row for each in reader.partitions(start, end) for row in rows(reader, each))


def rows(reader: Any, partition: Any) -> list[str]:
    return [row for part in reader.read(partition) for row in part.column("city").to_pylist()]


def test_what_spark_would_drop_is_not_asked_for() -> None:
    asked = OdfDataSource({"path": "cities", "pushFilters": "true"}).reader(None)  # type: ignore[arg-type]
    filters = [
        GreaterThan(("population",), 100_000), IsNotNull(("city",)), EqualTo(("a", "b"), 1), EqualTo(("d",), None),
        Not(EqualTo(("city",), "Linz")),
    ]  # fmt: skip
    assert asked.pushFilters(filters) == filters, "Spark looks itself too"
    parameters: dict[str, Any] = {}
    assert asked._asked.where.sql(parameters) == '(("population" > $p0) AND ("city" IS NOT NULL))'
    assert parameters == {"p0": 100_000}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partitions": "0"}, "1 to 1024"),
        ({"partitions": "1025"}, "1 to 1024"),
        ({"x": "y"}, "x is no option"),
        ({"columns": "a,"}, "a column has no name"),
        ({"node": "here", "repository": "there"}, "rows come from a node or from a repository"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_asked(options: dict[str, str], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        spark_source._ReadOptions.of({"path": "cities", **options})


def test_a_token_goes_with_what_is_asked_and_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(spark_source, "connect", lambda node, **more: given.append((node, more)))
    options = {"path": "cities", "node": "grpc+tls://node:1", "token": "hidden", "caFile": "ca.pem"}
    asked = pickle.loads(pickle.dumps(spark_source._ReadOptions.of(options)))
    asked.connect()
    assert given == [("grpc+tls://node:1", {"token": "hidden", "ca_file": "ca.pem"})]
    assert "hidden" not in repr(asked)


def first_block(alice: Any) -> str:
    """Before the second pull."""
    chain = alice.home.chains.chain(alice.dataset("cities"))
    newest = chain.last_of(("AddData",))
    return str(chain.last_of(("AddData",), newest.sequence_number).hash)


def frame(spark: Any, path: Path, **options: Any) -> Any:
    return spark.read.format("odf").options(node=str(path), **options).load("cities")


def batch(spark: Any, path: Path, **options: Any) -> list[str]:
    return sorted(row.city for row in frame(spark, path, **options).collect())


def as_people_ask(spark: Any, path: Path) -> None:
    whole = frame(spark, path)
    assert [(each.name, each.dataType.simpleString()) for each in whole.schema][-2:] == [
        ("city", "string"), ("population", "bigint"),
    ]  # fmt: skip
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    pushing = frame(spark, path, pushFilters="true")
    assert [row.city for row in pushing.where("population > 100000 and city like '%z'").collect()] == ["Graz", "Linz"]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    assert whole.where("population > 100000").groupBy().sum("population").collect()[0][0] == 510_000
    every = sorted(whole.collect())
    some = frame(spark, path, columns="population, city")
    assert some.columns == ["population", "city"]
    assert sorted(row.city for row in some.collect()) == sorted(row.city for row in every)
    parts = frame(spark, path, partitions=3)
    assert parts.rdd.getNumPartitions() == 3
    assert sorted(parts.collect()) == every
    assert batch(spark, path, asAt="2024-01-02", current="true") == ["Graz", "Linz"]
    for options, said in (({"asof": "1999-01-01"}, "cities"), ({"x": "y"}, "x is")):
        with pytest.raises(Exception, match=said):
            frame(spark, path, **options).collect()


def scans(spark: Any, path: Path, block: str) -> None:
    """Spark's own reader has the same rows, of the same types, at the same cuts; the rest is the format's."""
    with scan(spark, "cities", node=str(path)) as found:
        assert open_slices()
        assert plan_of(found).count("Scan parquet") == 1
        formatted = frame(spark, path)
        assert found.schema == formatted.schema
        assert sorted(found.collect()) == sorted(formatted.collect())
        assert found.where("population > 100000").count() == 2
    with scan(spark, "cities", node=str(path), atBlock=block) as found:
        assert sorted(row.city for row in found.collect()) == ["Graz", "Linz", "Wels"]
    with scan(spark, "cities", node=str(path), asAt="2024-01-02", current="true") as found:
        assert "Scan parquet" not in plan_of(found)
        assert sorted(row.city for row in found.collect()) == ["Graz", "Linz"]
    assert not open_slices(), "descriptors were left open"
    with pytest.raises(Exception, match="no dataset"), scan(spark, "towns", node=str(path)):
        pass


def test_a_scan_elsewhere_is_the_formats() -> None:
    """On a cluster, and over Spark Connect, which knows no context: tasks may run where no slices are."""

    class Connected:
        @property
        def sparkContext(self) -> Any:
            raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "x"})

    class Clustered:
        master = "spark://cluster:7077"

        @property
        def sparkContext(self) -> Any:
            return self

    for kind in (Connected, Clustered):
        session: Any = kind()
        session.read = mock.MagicMock()
        with scan(session, "cities", asOf="2024-05-01") as found:
            pass
        session.read.format.assert_called_once_with("odf")
        session.read.format().options.assert_called_once_with(asOf="2024-05-01")
        assert found is session.read.format().options().load("cities")


def open_slices() -> list[str]:
    """Objects of the node's store that this process, which is also the node, has open.

    Folders of stores that tests before this one left to a crash are gone from the disk.
    """
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(each.readlink()))
    return [each for each in found if "/objects/" in each and "sqlite" not in each and "(deleted)" not in each]


def plan_of(found: Any) -> str:
    return str(found._jdf.queryExecution().executedPlan().toString())


class Stream:
    """A stream into files, which runs until all that is there was read."""

    def __init__(self, spark: Any, path: Path, folder: Path) -> None:
        self._spark, self._path = spark, path
        self._out, self._checkpoint = folder / "out", folder / "checkpoint"

    def run(self) -> list[str]:
        rows = self._spark.readStream.format("odf").options(node=str(self._path), partitions=2).load("cities")
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(self._checkpoint))
        writer.trigger(availableNow=True).start(str(self._out)).awaitTermination()
        return sorted(row.city for row in self._spark.read.parquet(str(self._out)).collect())

    def run_again(self) -> list[str]:
        """As after a crash behind the last batch, and before it was noted."""
        commits = self._checkpoint / "commits"
        newest = max((each for each in commits.iterdir() if each.name.isdecimal()), key=lambda each: int(each.name))
        newest.unlink()
        (commits / f".{newest.name}.crc").unlink(missing_ok=True)
        return self.run()


def positions(path: Path) -> None:
    """Offsets of a stream: the same rows for the same two, and an error where the chain says otherwise."""
    source = OdfDataSource({"node": str(path), "path": "cities", "partitions": "2"})
    reader = source.streamReader(source.schema())
    start, end = reader.initialOffset(), reader.latestOffset()
    found = reader.partitions(start, end)
    assert [(each.first, each.last) for each in found if isinstance(each, _Rows)] == [(0, 1), (2, 4)]
    read = [row for each in found for part in reader.read(each) for row in part.column("city").to_pylist()]
    assert read == ["Graz", "Linz", "Wels", "Steyr", "Enns"]
    whole = source.reader(source.schema())
    assert [(each.first, each.last) for each in whole.partitions() if isinstance(each, _Rows)] == [(0, 1), (2, 4)]
    batches = [part for each in whole.partitions() for part in whole.read(each)]
    assert [row for part in batches for row in part.column("city").to_pylist()] == read
    assert reader.partitions(end, reader.latestOffset()) == []
    with pytest.raises(NotFound, match="history was rewritten"):
        reader.partitions({**end, "block": "f1620" + "00" * 32}, end)
    with pytest.raises(NotFound, match="history was rewritten"):
        reader.partitions({**end, "offset": 3}, end)
