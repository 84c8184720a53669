"""Reads datasets of a node in Spark: ``spark.read.format("odf")`` and ``spark.readStream.format("odf")``.

Needs pyspark 4.1, which ``odfd_client`` does not install; call ``spark.dataSource.register(OdfDataSource)`` once. A
batch is read at the cut that the driver saw, in ``partitions`` tasks by ranges of offsets; each shard of a collection
has one task at least. By default there is a task for each core where tasks read slices of their own machine, else one.
The offsets of a stream are positions in the chain, or in each shard: the offset of a row, and the block up to which was
read. So a batch that Spark repeats, also after a restart, has the same rows, and a rewritten history ends the stream.

Options: ``node`` (a socket or a URL that executors can reach too; by default as ``connect()``), or ``repository`` (a
place for ``open_repository`` that executors can reach too); ``token`` and ``caFile`` as for ``connect()``,
``current``, ``asOf``, ``atBlock``, ``asAt``, ``columns``, ``partitions``, ``pushFilters``. Spark does not tell a Python
source which columns a query uses, so ``columns`` (``city, celsius``) names those to read. A stream follows the whole
log; it takes no time and no ``current``.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as spark
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from odfd_client.datasets import Dataset
from odfd_client.errors import Invalid, NotFound
from odfd_client.expressions import Predicate, col
from odfd_client.relations import Selection
from odfd_client.repositories import Repository, open_repository
from odfd_client.session import Client, connect, transport_to
from odfd_client.slice_files import AT_ONCE, SliceFiles, cast_batch
from odfd_client.values import Pin, Position

_MOST_PARTITIONS = 1024
_WORTH_A_TASK = 200_000
"""Rows for which another task pays."""
_OF_CUTS = ("current", "asof", "atblock", "asat")
_KNOWN = (*_OF_CUTS, "node", "repository", "token", "cafile", "columns", "partitions", "path", "pushfilters")
_OF_SPARK = ("pyspark", "py4j")
"""Modules of errors of Spark; those of Java have no common base with the others."""
_COMPARED = {
    spark.EqualTo: "__eq__",
    spark.GreaterThan: "__gt__",
    spark.GreaterThanOrEqual: "__ge__",
    spark.LessThan: "__lt__",
    spark.LessThanOrEqual: "__le__",
}


@dataclass(frozen=True)
class _ReadOptions:
    """The options of a read, which are sent to executors."""

    name: str
    node: str | None
    current: bool
    clauses: tuple[tuple[str, str], ...]
    partitions: int
    """0: as many as suit."""
    token: str = field(repr=False)
    ca_file: str | None
    pushes: bool = False
    where: Predicate | None = None
    """Filter for rows, so that the node need not send the others."""
    repository: str | None = None
    columns: tuple[str, ...] = ()
    """Names of the columns that are read; empty: all."""

    @classmethod
    def of(cls, options: Any) -> _ReadOptions:
        """Parses Spark's options. Raises Invalid."""
        said = {key.lower(): str(value) for key, value in options.items()}
        if unknown := sorted(set(said) - set(_KNOWN)):
            hint = "node, repository, token, caFile, current, asOf, atBlock, asAt, columns, partitions, pushFilters are"
            raise Invalid(f"{unknown[0]} is no option of the format odf", rule="spark-option", hint=hint)
        if not said.get("path"):
            raise Invalid("no dataset is named", rule="spark-option", hint='load("weather")')
        count = said.get("partitions", "")
        if count and not (count.isdecimal() and 1 <= int(count) <= _MOST_PARTITIONS):
            raise Invalid(f"partitions is a number from 1 to {_MOST_PARTITIONS}, not {count!r}", rule="spark-option")
        clauses = tuple((key, said[key]) for key in _OF_CUTS[1:] if key in said)
        current = said.get("current", "false").lower() == "true"
        pushes = said.get("pushfilters", "false").lower() == "true"
        given = said.get("token", ""), said.get("cafile")
        repository = said.get("repository")
        if repository is not None and "node" in said:
            raise Invalid("rows come from a node or from a repository", rule="spark-option", hint="name one of them")
        columns = tuple(each.strip() for each in said["columns"].split(",")) if "columns" in said else ()
        if not all(columns):
            raise Invalid("a column has no name", rule="spark-option", hint="city, celsius")
        return cls(
            said["path"], said.get("node"), current, clauses, int(count or 0), *given, pushes, None, repository, columns
        )

    def connect(self) -> Client | Repository:
        if self.repository is not None:
            return _repository(self.repository, self.token, self.ca_file)
        return connect(self.node, token=self.token, ca_file=self.ca_file)

    def dataset(self) -> Dataset:
        return self._select(self.connect().open(self.name))

    def _select(self, found: Dataset) -> Dataset:
        for key, value in self.clauses:
            found = {"asof": found.at, "atblock": found.at_block, "asat": found.as_at}[key](value)
        found = found.current() if self.current else found
        found = found.select(*self.columns) if self.columns else found
        return found if self.where is None else found.where(self.where)

    def chain(self, pin: Pin) -> Dataset:
        """Returns one chain of the dataset, at this cut. Asks the node nothing."""
        if self.repository is not None:  # it may know the dataset by its folder alone
            return self._select(self.connect().open(self.name)).pinned(pin)
        transport = transport_to(self.node, self.token, self.ca_file)
        return self._select(Dataset(transport, Selection(pin.id))).pinned(pin)


@functools.lru_cache(maxsize=8)
def _repository(where: str, token: str, ca_file: str | None) -> Repository:
    """Opens a repository once in a process, so that its blocks are read once for all tasks."""
    return open_repository(where, token=token, ca_file=ca_file)


@contextmanager
def scan(session: SparkSession, name: str, **options: str) -> Iterator[DataFrame]:
    """Yields a frame of a dataset that Spark reads by itself if it can; valid within the block.

    If the rows are a whole log and its slices are on the machine of Spark's tasks, Spark's own reader of Parquet reads
    them, with its pruning and its speed. The slices stay readable to the end of the block, even if the node collects
    them. Otherwise, the frame is that of the format ``odf``. Options are those of the format. If Spark fails in the
    block, the slices are hashed again: a damaged one is the error then, with Spark's as its cause.
    """
    asked = _ReadOptions.of({"path": name, **options})
    files = asked.dataset().files(keep=True) if _is_local(session) else None
    if files is None:
        yield session.read.format(OdfDataSource.name()).options(**options).load(name)
        return
    try:
        yield _scan(session, files, asked.columns)
    except Exception as error:
        if type(error).__module__.partition(".")[0] in _OF_SPARK:
            files.check_again(error)
        raise
    finally:
        files.close()


def _is_local(session: SparkSession) -> bool:
    """Whether the session's tasks run on this machine; False for Spark Connect, which does not tell."""
    with suppress(PySparkException):
        return bool(session.sparkContext.master.startswith("local"))
    return False


def _scan(session: SparkSession, files: SliceFiles, columns: Sequence[str]) -> DataFrame:
    schema = _spark_schema(_choose(files.schema, columns))
    return session.read.schema(schema).parquet(*files.paths) if files.paths else session.createDataFrame([], schema)


@dataclass
class _Rows(InputPartition):  # type: ignore[misc]
    """Rows of offsets ``first`` to ``last`` at one cut; ``None``: all rows."""

    pin: dict[str, Any]
    first: int | None = None
    last: int | None = None


class OdfDataSource(DataSource):  # type: ignore[misc]
    """The Spark data source of format ``odf``."""

    @classmethod
    def name(cls) -> str:
        return "odf"

    def schema(self) -> StructType:
        asked = _ReadOptions.of(self.options)
        dataset = asked.dataset()
        if (files := dataset.listed()) is not None:
            return _spark_schema(_choose(files.schema, asked.columns))
        with dataset.limit(0).answer() as answer:
            return _spark_schema(answer.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        asked = _ReadOptions.of(self.options)
        return (_FilteringReader if asked.pushes else _BatchReader)(asked, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        asked = _ReadOptions.of(self.options)
        if asked.current or asked.clauses:
            raise Invalid("a stream follows the whole log", rule="spark-option", hint="leave out current and all times")
        return _StreamReader(asked, schema)


class _BatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads one cut, which always has the same rows."""

    def __init__(self, asked: _ReadOptions, schema: StructType) -> None:
        self._asked, self._schema = asked, schema

    def partitions(self) -> Sequence[InputPartition]:
        chains = self._asked.dataset().chains()
        if self._asked.current:
            return [_Rows(chain.pin.said()) for chain in chains]
        return [*itertools.chain(*(self._of(chain, len(chains)) for chain in chains))] or [_Rows(chains[0].pin.said())]

    def _of(self, chain: Dataset, chains: int) -> list[InputPartition]:
        """Returns the rows of one of so many chains, in parts."""
        wanted, files = self._asked.partitions, chain.listed()
        if files is None and wanted <= chains:
            return [_Rows(chain.pin.said())]
        last = chain.last_offset() if files is None else files.last_offset
        return _parts(chain.pin, files, (0, last), wanted, chains)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Rows)
        return _batches(self._asked, self._schema, partition)


class _FilteringReader(_BatchReader):
    """A reader with pushed filters, for sessions that push them; in others Spark refuses a reader with this method."""

    def pushFilters(self, filters: list[spark.Filter]) -> list[spark.Filter]:  # noqa: N802  Spark's name
        """Passes filters to the node, so that it leaves out other rows. Spark applies all filters again itself."""
        known = [found for filter_ in filters if (found := _predicate(filter_)) is not None]
        for each in known:
            where = self._asked.where
            self._asked = replace(self._asked, where=each if where is None else where & each)
        return filters


class _StreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """Reads the log as it grows. An offset of Spark is a position of ``odfd_client``."""

    def __init__(self, asked: _ReadOptions, schema: StructType) -> None:
        self._asked, self._schema = asked, schema

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"id": "", "offset": -1, "block": "", "sequence_number": -1}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802, ARG002
        parts = [
            Position(chain.pin.id, chain.last_offset(), chain.pin.block, chain.pin.sequence_number)
            for chain in self._asked.dataset().chains()
        ]
        return Position.of(parts).said()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Returns the rows between two positions in parts. Raises NotFound if the history was rewritten."""
        began, until = (Position.parse(json.dumps(said)) for said in (start, end))
        if began.block:
            self._check(began, until)
        found: list[InputPartition] = []
        for place, each in enumerate(until.parts):
            pin = Pin(each.id, each.id, each.block, each.sequence_number)
            first = began.parts[place].offset + 1 if began.block else 0
            files = self._asked.chain(pin).listed() if first <= each.offset else None
            found += _parts(pin, files, (first, each.offset), self._asked.partitions, len(until.parts))
        return found

    def _check(self, position: Position, until: Position) -> None:
        """Raises NotFound if the chains have another history than the one that was read."""
        try:
            is_same = [part.id for part in position.parts] == [part.id for part in until.parts] and all(
                self._asked.chain(Pin(part.id, part.id, part.block, part.sequence_number)).last_offset() == part.offset
                for part in position.parts
            )
        except (NotFound, Invalid):
            is_same = False
        if not is_same:
            raise NotFound(
                f"block #{position.sequence_number} of {self._asked.name} is not the one that the stream read: its"
                " history was rewritten, or the name is another dataset's",
                rule="listen-rewritten",
                hint="start again with an empty checkpoint, and replace the results of the former rows",
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Rows)
        return _batches(self._asked, self._schema, partition)


def _predicate(expression: spark.Filter) -> Predicate | None:
    """Converts a filter of Spark; ``None``: its kind, column or value is left to Spark."""
    name: tuple[str, ...] = getattr(expression, "attribute", ())
    if len(name) != 1:
        return None
    if isinstance(expression, spark.IsNotNull):
        return col(name[0]).is_not_null()
    way, value = _COMPARED.get(type(expression)), getattr(expression, "value", None)
    if way is None or not isinstance(value, bool | int | str):
        return None
    found: Predicate = getattr(col(name[0]), way)(value)
    return found


def _parts(
    pin: Pin, files: SliceFiles | None, offsets: tuple[int, int], wanted: int, chains: int
) -> list[InputPartition]:
    """Divides rows of one chain among tasks. ``wanted``: number of tasks for all ``chains``; 0: as many as suit.

    ``files``: the slices, if they are on this machine. Ranges begin with a slice if possible, so that few slices are
    read by two tasks.
    """
    first, last = offsets
    rows = last - first + 1
    if rows <= 0:
        return []
    if files is None:
        return _ranges(pin, first, last, max(1, wanted // chains), ())
    suit = min(os.cpu_count() or 1, 1 + rows // _WORTH_A_TASK)
    starts = [low for low, high in files.spans if first < low and high <= last]
    fewest = 1 + len(starts) // (AT_ONCE // 2)
    return _ranges(pin, first, last, max((wanted or suit) // chains, fewest), starts)


def _ranges(pin: Pin, first: int, last: int, count: int, starts: Sequence[int]) -> list[InputPartition]:
    """Divides offsets ``first`` to ``last`` into parts of about equal size. ``starts``: of slices, in order.

    An edge moves to the nearest start that is not further away than a quarter of a part.
    """
    rows = last - first + 1
    count = min(count, rows)
    edges = [first + rows * place // count for place in range(count + 1)]
    edges[1:-1] = [_near(edge, starts, rows // count // 4) for edge in edges[1:-1]]
    return [_Rows(pin.said(), low, high - 1) for low, high in itertools.pairwise(edges)]


def _near(edge: int, starts: Sequence[int], most: int) -> int:
    place = bisect_left(starts, edge)
    found = min(starts[max(0, place - 1) : place + 1], key=lambda each: abs(each - edge), default=edge)
    return found if abs(found - edge) <= most else edge


def _batches(asked: _ReadOptions, schema: StructType, rows: _Rows) -> Iterator[pa.RecordBatch]:
    """Yields batches with exactly Spark's types."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    dataset = asked.chain(Pin.of(rows.pin)).select(*wanted.names)
    for batch in _within(dataset, rows, wanted.names):
        yield cast_batch(batch, wanted)


def _within(dataset: Dataset, rows: _Rows, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields rows from the slices if they are on this machine, else from the node."""
    if rows.first is None or rows.last is None:
        return iter(dataset.reader())
    if (files := dataset.files(offsets=(rows.first, rows.last))) is not None:
        return files.between(columns, rows.first, rows.last)
    return iter(dataset.where((col("offset") >= rows.first) & (col("offset") <= rows.last)).reader())


def _choose(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in columns]) if columns else schema


def _spark_schema(schema: pa.Schema) -> StructType:
    return from_arrow_schema(pa.schema([field.with_type(_readable(field.type)) for field in schema]))


def _readable(kind: pa.DataType) -> pa.DataType:
    """Returns a type of Spark that holds all values. Nanoseconds that are not whole microseconds make the read fail."""
    wider = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
    }
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return wider.get(kind, kind)
