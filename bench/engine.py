"""Measures the engine's frame: a small transform through sandbox and gRPC, and a year of flights into a dataset.

Against the same query, and a plain CSV to Parquet, on a bare Spark of this process with the same settings.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import trio
from pyspark.sql import SparkSession

from bench import chains
from bench.measure import Row, Side, Size, in_turns, in_turns_async
from bench.node import daemon, odfctl
from bench.store import opened as store
from chain.data.arrow_schema import from_arrow
from chain.data.logical_hash import logical_hash_file
from chain.data.parquet import write_slice
from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant
from chain.model.events import (
    AddData,
    DatasetKind,
    DataSlice,
    OffsetInterval,
    Seed,
    SetDataSchema,
    SetTransform,
    TransformInput,
)
from chain.model.source import SqlQueryStep, TransformSql
from chain.state import load_state
from chain.store.base import Append
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from demo.data import cut_flights
from engines.contract import Engine, EngineIdentity, OnProgress, ignore_progress
from engines.provision.host import OnCluster, SparkOptions, spark_engine
from engines.provision.settings import WarmthLimits
from engines.provision.warm import EnginePool
from engines.request_control import RequestControl
from engines.spark.handler import SparkHandler
from engines.spark.runtime.java import find_archive, find_java, install_folder
from engines.spark.runtime.session import SessionOptions, start_session, stop_session
from odfd.transform.checkpoint_info import NOTHING
from odfd.transform.driver import plan_at
from odfd.transform.execute import Executed, execute
from odfd.transform.plan import TransformPlan
from odfd.transform.requests import Files


class LocalEngine:
    """An ``contract.Engine`` in this process."""

    def __init__(self, spark: SparkSession, digest: str = "sha256:" + "1" * 64) -> None:
        self._identity = EngineIdentity(
            name="spark", version="4", digest=digest, sandbox="none", platform="linux/amd64"
        )
        self._handler = SparkHandler(spark, lambda: self._identity)

    async def identity(self) -> EngineIdentity:
        return self._identity

    async def validate(self, request: Any) -> Any:
        return await trio.to_thread.run_sync(self._handler.validate, request)

    async def transform(self, request: Any, on_progress: OnProgress = ignore_progress) -> Any:
        return await trio.to_thread.run_sync(self._handler.transform, request, RequestControl())

    async def migrate(self, request: Any, on_progress: OnProgress = ignore_progress) -> Any:
        return await trio.to_thread.run_sync(self._handler.migrate, request, RequestControl())

    async def ingest(self, request: Any, on_progress: OnProgress = ignore_progress) -> Any:
        return await trio.to_thread.run_sync(self._handler.ingest, request, RequestControl())

    async def raw_query(self, request: Any, on_progress: OnProgress = ignore_progress) -> Any:
        return await trio.to_thread.run_sync(self._handler.raw_query, request, RequestControl())


ROOT, DERIVED = (DatasetId.from_public_key(name.ljust(32)) for name in (b"readings", b"readings by day"))
PATIENT = WarmthLimits(start=600.0)
"""Rows are measured on machines under load too: a slow start fails none."""
DAY: Final = 86_400_000
"""Milliseconds."""
DAILY: Final = """
select window.start as event_time, count(*) as n, sum(value) as total from x group by window(event_time, '1 day')
"""
_SETTINGS: Final = "[engine]\nidle-seconds = 600\nquick-start = {}\n"
_MANIFEST: Final = Path(__file__).parents[1] / "demo" / "manifests" / "flights.yaml"
_CSV_TYPES: Final = """
year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int,
arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, distance int,
hour int, minute int, time_hour timestamp
"""
_COLUMNS: Final = (
    "time_hour as event_time, carrier, flight, tailnum, origin, dest, sched_dep_time, dep_time, dep_delay,"
    " sched_arr_time, arr_time, arr_delay, air_time, distance"
)


@contextmanager
def bare_spark(size: Size, folder: Path) -> Iterator[SparkSession]:
    """Starts Spark with the engine's settings, as an engine does.

    At quick sizes, which do not measure speed, it stays for the next row.
    """
    if size.quick:
        yield _quick_spark()
        return
    with _started(size, folder) as spark:
        yield spark


@contextmanager
def _started(size: Size, folder: Path) -> Iterator[SparkSession]:
    archive = find_archive(install_folder(), find_java(os.environ, folder))
    spark = start_session(SessionOptions(folder, cores=2, heap="1g", quick=size.quick, archive=archive))
    try:
        yield spark
    finally:
        stop_session(spark)


_QUICK: Final = ExitStack()
"""What ``_quick_spark`` keeps."""


@cache
def _quick_spark() -> SparkSession:
    atexit.register(_QUICK.close)
    folder = _QUICK.enter_context(tempfile.TemporaryDirectory(prefix="odfd-bench-"))
    return _QUICK.enter_context(_started(Size(quick=True), Path(folder)))


def stop_quick_spark() -> None:
    """Stops Spark for a row that needs other settings. Idempotent."""
    _quick_spark.cache_clear()
    _QUICK.close()


@asynccontextmanager
async def warm_engine(
    size: Size, folder: Path, heap: str = "1g", cluster: OnCluster | None = None, peer: SparkSession | None = None
) -> AsyncIterator[tuple[Engine, str]]:
    """Starts an engine as a node does; yields it and its sandbox.

    At quick sizes yields its handler on the Spark of this process, which is the ``peer`` or a bare one: only the daemon
    of ``ingest`` starts an engine.
    """
    if size.quick:
        with nullcontext(peer) if peer is not None else bare_spark(size, folder / "spark") as spark:
            local: Any = LocalEngine(spark)
            yield local, "none"
        return
    options = SparkOptions(
        scratch=folder / "scratch",
        cache=folder / "cache",
        cores=2,
        heap=heap,
        cluster=cluster,
        limits=PATIENT,
    )
    host = await spark_engine(options, os.environ, lambda _, __: None)
    async with trio.open_nursery() as nursery:
        await nursery.start(host.engine.run)  # type: ignore[arg-type]  # trio cannot name what it passes
        yield host.engine, host.identity.sandbox
        nursery.cancel_scope.cancel()


def measure_transform(size: Size, folder: Path) -> list[Row]:
    """Measures one transaction of a windowed query, both engines warm."""
    rows = size.pick(100, 10_000)
    with store(folder / "store") as (kept, objects), bare_spark(size, folder / "spark") as spark:
        path = _readings(kept, objects, rows)
        plan = _plan(kept)
        return [trio.run(_measure_transform, size, (folder, objects, plan), (spark, path))]


async def _measure_transform(
    size: Size, ours: tuple[Path, DiskObjects, TransformPlan], bare: tuple[SparkSession, Path]
) -> Row:
    folder, objects, plan = ours
    fresh = iter(range(1_000))

    async def transact(engine: Engine) -> None:
        number = next(fresh)
        place = folder / f"out-{number}"
        place.mkdir()
        files, engines = Files(folder=place, previous=None), EnginePool({"spark": (engine,)})
        anew = msgspec.structs.replace(plan, transaction_id=f"bench-{number}")
        done = await execute(anew, engines, objects, files, repeats=False)
        assert isinstance(done, Executed), done
        assert done.records

    async def query() -> None:
        await trio.to_thread.run_sync(_query, *bare, folder / f"bare-{next(fresh)}")

    async with warm_engine(size, folder, peer=bare[0]) as (engine, sandbox):
        costs, bare_costs = await in_turns_async(partial(transact, engine), query, size.pick(1, 15), size.pick(0, 15))
    return Row(
        name="transform",
        measures=f"a daily window over {plan.input_slices[0].offset_interval.end + 1:,} rows, warm",
        ours=Side(name=f"plan to measured slice, gRPC, sandbox {sandbox}", costs=costs),
        peer=Side(name="the query on bare Spark, Parquet to Parquet", costs=bare_costs),
    )


def _query(spark: SparkSession, source: Path, target: Path) -> None:
    session = spark.newSession()
    session.read.parquet(str(source)).createOrReplaceTempView("x")
    session.sql(DAILY).coalesce(1).write.parquet(str(target))


def _readings(kept: SqliteChains, objects: DiskObjects, rows: int) -> Path:
    """Both chains in the store, ten days of rows in one slice; its file."""
    first = chains.START // MILLISECOND
    numbers = np.arange(rows)
    table = pa.table(
        [
            numbers,
            np.zeros(rows, np.int32),
            pa.array(np.full(rows, first), pa.timestamp("ms", "UTC")),
            pa.array(first + numbers * (10 * DAY) // rows, pa.timestamp("ms", "UTC")),
            numbers % 97,
        ],
        schema=chains.SCHEMA,
    )
    staged = objects.stage()
    write_slice(table, staged)
    logical, volume = logical_hash_file(staged), staged.stat().st_size
    name = objects.add_file(staged)
    data = DataSlice(
        logical_hash=logical,
        physical_hash=name,
        offset_interval=OffsetInterval(start=0, end=rows - 1),
        size=volume,
    )
    watermark = Instant((first + 11 * DAY) * MILLISECOND)
    root = (
        Seed(dataset_id=ROOT, dataset_kind=DatasetKind.ROOT),
        SetDataSchema(schema=from_arrow(chains.SCHEMA)),
        AddData(new_data=data, new_watermark=watermark),
    )
    derived = (
        Seed(dataset_id=DERIVED, dataset_kind=DatasetKind.DERIVATIVE),
        SetTransform(
            inputs=(TransformInput(dataset_ref=str(ROOT), alias="x"),),
            transform=TransformSql(engine="spark", queries=(SqlQueryStep(query=DAILY),)),
        ),
    )
    kept.commit([Append(dataset=ROOT, expected=None, blocks=chains.blocks_of(*root), objects=[name])])
    kept.commit([Append(dataset=DERIVED, expected=None, blocks=chains.blocks_of(*derived))])
    return objects.path(name)


def _plan(kept: SqliteChains) -> TransformPlan:
    reader = kept.chain(DERIVED)
    head = kept.chain(ROOT).head()
    assert head is not None
    plan = plan_at(
        kept, reader, load_state(reader), {ROOT: head.hash}, NOTHING, Instant(chains.START + DAY * MILLISECOND)
    )
    assert isinstance(plan, TransformPlan), plan
    return plan


def measure_ingest(size: Size, folder: Path) -> list[Row]:
    """Measures an ingest of a year of flights from one CSV file into a new dataset of a running node."""
    months = folder / "months"
    counts = cut_flights(months)
    source = folder / "source"
    source.mkdir()
    rows = _join(months, source / "2013-12-31.csv", size.pick(1, len(counts)))
    fresh = iter(range(1_000))
    with daemon(folder, _SETTINGS.format(str(size.quick).lower())) as node, bare_spark(size, folder / "spark") as spark:

        def prepare() -> str:
            name = f"flights-{next(fresh)}"
            manifest = _MANIFEST.read_text().replace("name: nyc.flights", f"name: {name}")
            path = folder / f"{name}.yaml"
            path.write_text(manifest.replace("months/*.csv", f"{source}/*.csv"))
            odfctl(node, "apply", "-f", str(path))()
            return name

        waiting = [prepare() for _ in range(1 + size.pick(1, 5))]

        def pull() -> None:
            answer: Any = odfctl(node, "-o", "json", "-q", "pull", waiting.pop())()
            assert f'"records": {rows}' in answer, answer

        def convert() -> None:
            read = spark.read.csv(str(source), schema=_CSV_TYPES, header=True, nullValue="NA")
            target = str(folder / f"bare-{next(fresh)}")
            read.selectExpr(*_COLUMNS.split(", ")).coalesce(1).write.parquet(target)

        ours, peer = in_turns(pull, convert, size.pick(1, 5), warm=size.pick(0, 1))
    volume = (source / "2013-12-31.csv").stat().st_size
    return [
        Row(
            name="ingest",
            measures=f"{rows:,} flights in one file, warm",
            ours=Side(
                name="odfctl pull: parse, merge, both hashes, sign, commit", costs=ours, amount=rows, unit="rows"
            ),
            peer=Side(name="bare Spark, CSV to Parquet", costs=peer, amount=rows, unit="rows"),
            facts={"MB of CSV": volume / 1e6},
        )
    ]


def _join(months: Path, target: Path, parts: int) -> int:
    """One file of the last ``parts`` of them; its rows."""
    rows = 0
    with target.open("w") as out:
        for number, path in enumerate(sorted(months.iterdir())[-parts:]):
            header, _, body = path.read_text().partition("\n")
            out.write(body if number else f"{header}\n{body}")
            rows += body.count("\n")
    return rows
