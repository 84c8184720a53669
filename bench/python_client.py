"""Measures reading from Python and Spark: a log against Arrow and Spark over the same files; opening a long chain."""

from __future__ import annotations

import importlib
import random
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from bench import chains
from bench.engine import stop_quick_spark
from bench.machine import highest
from bench.measure import MILLION, Row, Side, Size, in_turns
from bench.node import TREE, daemon
from chain.data.arrow_schema import from_arrow
from chain.data.logical_hash import logical_hash_file
from chain.data.parquet import write_slice
from chain.ids import DatasetId
from chain.model.events import AddData, DatasetKind, DataSlice, MetadataEvent, OffsetInterval, Seed, SetDataSchema
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from chain.store.base import Append
from engines.spark.runtime.session import SessionOptions, start_session, stop_session
from odfd.runtime.clock import SystemClock
from odfd.store.catalog import Catalog
from odfd.store.directory import StateDirectory, open_state_directory
from odfd.store.references import keep_references

sys.path.append(str(TREE / "client"))  # a distribution of its own, which is not installed here
from odfd_client import connect

_KEY: Final = SigningKey(bytes(range(32)))
_SLICES: Final = 10
_CORES: Final = 2
_LARGE: Final = "select range as n, repeat('x', 100) as text from range({})"


def measure_client(size: Size, folder: Path) -> list[Row]:
    """Measures ``to_arrow``, ``open``, and the memory of a large answer.

    ``pyarrow.dataset`` is asked for the same columns, with times in microseconds, and for them as they are stored.
    """
    rounds, length = size.pick(1, 41), MILLION if size.million and not size.quick else 1_000
    with open_state_directory(folder / "rows" / "node" / "state") as home:
        paths = fill(home, size.pick(1_000, 500_000))
    with daemon(folder / "rows") as node:
        rows_of = connect(node.socket)

        def read() -> pa.Table:
            return rows_of.open("large").to_arrow()

        schema = read().schema

        def scan() -> pa.Table:
            return ds.dataset(paths, schema, format="parquet").to_table()

        def stored() -> pa.Table:
            return ds.dataset(paths, format="parquet").to_table()

        assert read().equals(scan())
        arrow, units = in_turns(read, scan, rounds), in_turns(read, stored, rounds)
    for name, blocks in (("a", length), ("b", 100)):
        with open_state_directory(folder / name / "node" / "state") as home:
            _keep(home, blocks)
    with daemon(folder / "a") as node, daemon(folder / "b") as short:
        ours, theirs = connect(node.socket), connect(short.socket)
        opened = in_turns(lambda: ours.open("long"), lambda: theirs.open("long"), rounds)
        rows = size.pick(10_000, 20_000_000)
        assert sum(each.num_rows for each in ours.sql(_LARGE.format(rows)).reader()) == rows
        assert node.process is not None
        memory = float(highest(node.process.pid))
        assert short.process is not None
        idle = float(highest(short.process.pid))
    return [
        _row("to_arrow", "a whole log of a node on this machine", "odfd_client", "pyarrow.dataset", arrow, "1.05"),
        _row("to_arrow, units", "the same, times in milliseconds there", "odfd_client", "pyarrow.dataset", units, ""),
        _row("open", f"a dataset of {length:,} blocks, by the client", "it", "one of 100 blocks", opened, "1.1"),
        Row(
            name="large answer",
            measures=f"memory of a node while {rows * 108 / 1e6:,.0f} MB are read",
            ours=Side(name="that node, at its highest", costs=(memory,), unit="B"),
            peer=Side(name="another node", costs=(idle,), unit="B"),
            goal="300 MB",
        ),
    ]


def measure_source(size: Size, folder: Path) -> list[Row]:
    """Measures ``spark.read.format("odf")`` in as many tasks as Spark has cores; all columns of all rows are read."""
    with open_state_directory(folder / "node" / "state") as home:
        paths = fill(home, size.pick(1_000, 200_000))
    stop_quick_spark()
    spark = start_session(SessionOptions(folder / "spark", cores=_CORES, heap="2g", quick=size.quick))
    try:
        spark.sparkContext.environment["PYTHONPATH"] = str(TREE / "client")
        client = importlib.import_module("odfd_client.spark")
        spark.dataSource.register(client.OdfDataSource)
        with daemon(folder) as node:

            def read(frame: Any) -> None:
                frame.write.format("noop").mode("overwrite").save()

            def ours() -> Any:
                return spark.read.format("odf").options(node=str(node.socket), partitions=_CORES).load("large")

            def scanned() -> None:
                with client.scan(spark, "large", node=str(node.socket)) as frame:
                    read(frame)

            def theirs() -> None:
                read(spark.read.parquet(*paths))

            assert ours().count() == spark.read.parquet(*paths).count()
            rounds = size.pick(1, 7)
            scans = in_turns(scanned, theirs, rounds, warm=3)
            workers = in_turns(lambda: read(ours()), theirs, rounds, warm=3)
    finally:
        stop_session(spark)
    return [
        _row("source", "all rows of a log in Spark", "odfd_client.spark.scan", "spark.read.parquet", scans, "1.1"),
        _row("source, workers", "all rows of a log in Spark", 'format("odf")', "spark.read.parquet", workers, ""),
    ]


def _row(name: str, measures: str, ours: str, peer: str, costs: tuple[tuple[float, ...], ...], goal: str) -> Row:
    return Row(
        name=name, measures=measures, ours=Side(name=ours, costs=costs[0]), peer=Side(name=peer, costs=costs[1]),
        goal=goal,
    )  # fmt: skip


def fill(home: StateDirectory, rows: int, text: int = 0) -> list[str]:
    """A dataset ``large`` of so many rows a slice, each with so many bytes that do not compress; its files."""
    schema = chains.SCHEMA.append(pa.field("text", pa.string())) if text else chains.SCHEMA
    events: list[MetadataEvent] = [
        Seed(dataset_id=_KEY.dataset_id, dataset_kind=DatasetKind.ROOT),
        SetDataSchema(schema=from_arrow(schema)),
    ]
    names = []
    for first in range(0, rows * _SLICES, rows):
        columns: list[Callable[[], pa.Array]] = [
            lambda first=first: pa.array(range(first, first + rows), pa.int64()),  # type: ignore[misc]
            lambda: pa.array([0] * rows, pa.int32()),
            lambda: pa.array([0] * rows, pa.timestamp("ms", "UTC")),
            lambda: pa.array([0] * rows, pa.timestamp("ms", "UTC")),
            lambda: pa.array(range(rows), pa.int64()),
        ]
        if text:
            columns.append(lambda: pa.array([b64encode(random.randbytes(text * 3 // 4)).decode() for _ in range(rows)]))
        staged = home.objects.stage()
        write_slice(pa.table([each() for each in columns], schema), staged)
        said = DataSlice(
            logical_hash=logical_hash_file(staged),
            physical_hash=Multihash.sha3_256(staged.read_bytes()),
            offset_interval=OffsetInterval(start=first, end=first + rows - 1),
            size=staged.stat().st_size,
        )
        names.append(home.objects.add_file(staged))
        events.append(AddData(prev_offset=first - 1 if first else None, new_data=said))
    made = chains.blocks_of(*events)
    append = Append(dataset=_KEY.dataset_id, expected=None, blocks=made, objects=names)
    home.chains.commit([append], lambda connection: keep_references(connection, _KEY.dataset_id, made))
    _name(home, "large", _KEY.dataset_id)
    return [str(home.objects.path(each)) for each in names]


def _keep(home: StateDirectory, length: int) -> None:
    """A dataset ``long`` of so many blocks."""
    chains.keep(home.chains, chains.long_chain(length, slices=False))
    _name(home, "long", chains.DATASET)


def _name(home: StateDirectory, name: str, dataset: DatasetId) -> None:
    with home.database.write() as connection:
        Catalog(connection).add(name, dataset, SystemClock().now())
