"""Writes Parquet slices with pinned settings, so that equal rows make equal bytes; reads them under limits.

A ``SliceWriter`` lives for one file and holds at most one row group in memory; an open ``SliceFile`` one window of
rows. Neither syncs to disk nor names files by hash: the object store does. Settings are those of the reference (data
pages v1, snappy, dictionaries, statistics), where pyarrow has them (ODF specification, section "Data slices").
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, TypeAlias

import msgspec

from chain.data import dictionaries, footprint
from chain.data.footer import UNREADABLE, ParquetFooter, parse_footer
from chain.data.json_values import to_instant as to_instant
from chain.data.uuids import as_stored, named_all, stored_all
from chain.errors import Environment, Invalid, NotFound
from chain.instant import Instant
from chain.libraries import pa, pc, pq

ROW_GROUP: Final = 1_048_576
READ_ROWS: Final = 65_536
"""Most rows of a batch when reading."""
MAX_FOOTER: Final = 16 * 1024 * 1024
MAX_FOOTER_ITEMS: Final = 20_000
"""Limits on allocations by an untrusted footer: total bytes, items of a list. 1000 columns take some 200 KB."""
_READ_BUFFER: Final = 1024 * 1024
_MARK: Final = b"PAR1"
_LENGTH: Final = 4

Source: TypeAlias = Path | bytes
"""A slice's file, or the whole of its bytes if it is small."""
OFFSET, OP, SYSTEM_TIME, EVENT_TIME = "offset", "op", "system_time", "event_time"
"""Default names of the system columns; a dataset's vocabulary may define others."""


class SliceStats(msgspec.Struct, frozen=True):
    """Values from a file's statistics. Trust them only for a file that this node wrote."""

    rows: int
    offsets: tuple[int, int] | None
    """First and last offset; ``None`` when there are no rows."""
    event_times: tuple[Instant, Instant] | None
    """Least and greatest event time that is not null; ``None`` when there is none."""


def write_slice(table: pa.Table, path: Path) -> None:
    """Writes all rows to a new file; its bytes depend on rows, schema and the pinned pyarrow, not on chunks.

    Raises Environment when the disk refuses, Invalid for types that Parquet lacks.
    """
    with SliceWriter(path, table.schema) as writer:
        writer.write(table)


class SliceWriter:
    """Streams rows into one slice. Use as a context manager; leaving it by an exception removes the file."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        """Opens the file.

        All columns but offsets get dictionaries. Offsets count up by one and are written as differences, a few bytes a
        page; written plainly they would be half of a slice of small rows. Raises Environment, Invalid for a type that
        Parquet would change.
        """
        check_storable(schema)
        self._path = path
        self._schema = schema.remove_metadata()
        self._named = named_all(self._schema)
        leaves = [leaf for leaf in _leaf_paths(list(self._schema)) if leaf != OFFSET]
        counted = [field.type for field in schema if field.name == OFFSET] == [pa.int64()]
        self._pending: list[pa.Table] = []
        self._rows = 0
        self.rows = 0
        with _disk(path):
            self._writer = pq.ParquetWriter(
                path,
                self._named,
                version="2.6",
                data_page_version="1.0",
                compression="snappy",
                use_dictionary=leaves or False,
                column_encoding={OFFSET: "DELTA_BINARY_PACKED"} if counted else None,
                write_statistics=True,
                data_page_size=1024 * 1024,
                dictionary_pagesize_limit=1024 * 1024,
                write_batch_size=1024,
                store_schema=True,
                use_compliant_nested_type=True,
                write_page_index=False,
                write_page_checksum=False,
                sorting_columns=None,
            )

    def __enter__(self) -> SliceWriter:
        return self

    def write(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Appends rows of the writer's schema. Raises Invalid for another schema, Environment."""
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        if not table.schema.equals(self._schema, check_metadata=False):
            raise Invalid("rows of another schema than the slice began with", rule="slice-schema")
        table = table.replace_schema_metadata(None)
        self.rows += table.num_rows
        start = 0
        while self._rows + table.num_rows - start >= ROW_GROUP:
            take = ROW_GROUP - self._rows
            self._pending.append(table.slice(start, take))
            self._flush()
            start += take
        if start < table.num_rows:
            self._pending.append(table.slice(start))
            self._rows += table.num_rows - start

    def _flush(self) -> None:
        if not self._pending:
            return
        group = pa.concat_tables(self._pending).combine_chunks().cast(self._named)
        self._pending, self._rows = [], 0
        with _disk(self._path):
            self._writer.write_table(group, row_group_size=ROW_GROUP)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            try:
                with _disk(self._path):
                    self._writer.close()
            finally:
                if kind is not None:
                    self._path.unlink(missing_ok=True)


class SliceFile:
    """An open Parquet file of rows; a context manager. Values are returned as the file has them, UUIDs as bytes."""

    def __init__(self, source: Source, raw_footer: bytes, file: pq.ParquetFile) -> None:
        """Takes a file opened by ``raw_footer``, so that a later change of the footer on disk has no effect."""
        self._source = source
        self._raw_footer = raw_footer
        self._file = file
        self.schema: pa.Schema = stored_all(file.schema_arrow)
        self._has_uuids = self.schema != file.schema_arrow
        self.rows: int = file.metadata.num_rows

    @property
    def name(self) -> str:
        return _named(self._source)

    def __enter__(self) -> SliceFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def row_groups(self) -> list[int]:
        """Returns the number of rows of each row group."""
        metadata = self._file.metadata
        return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]

    @functools.cached_property
    def footer(self) -> ParquetFooter:
        """The footer, with columns and their chunks. Raises Invalid."""
        with _placed(self._source):
            return parse_footer(self._raw_footer)

    def chunks(self, columns: Collection[str]) -> dict[str, list[footprint.Chunk]]:
        """Returns, by path of leaf column, each row group's chunk with its page headers. Raises Invalid."""
        with _reading(self._source) as file, _placed(self._source):
            size = file.seek(0, io.SEEK_END)
            return {
                leaf.path: [footprint.walked(file, size, group.chunks[number]) for group in self.footer.groups]
                for number, leaf in enumerate(self.footer.leaves)
                if leaf.path in columns
            }

    def batches(
        self,
        rows: int = READ_ROWS,
        columns: list[str] | None = None,
        *,
        encoded: bool = False,
        groups: range | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yields all rows in order, or those of some row ``groups``; at most ``rows`` at a time, fewer where they would
        take too much memory.

        ``encoded``: repeating texts may stay encoded by the file's dictionaries, which is several times faster for
        callers that can work with them (``dictionaries.repeating``). Raises Invalid if the file is damaged, or made to
        take unreasonable memory.
        """
        with _parquet(_named(self._source)):
            if groups is not None:
                read = self._groups(groups, rows, columns, self._planned(groups))
            elif encoded and not self._plan.compact and (repeating := dictionaries.repeating(self.footer, self.schema)):
                read = self._encoded(min(rows, self._plan.rows), columns, repeating)
            else:
                read = self._groups(range(self._file.num_row_groups), rows, columns, self._plan)
            yield from map(as_stored, read) if self._has_uuids else read

    def _encoded(self, rows: int, columns: list[str] | None, repeating: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        with self._with_references(repeating) as file:
            for batch in file.iter_batches(rows, columns=columns, use_threads=False):
                dictionaries.check(batch, repeating)
                yield batch

    def _groups(
        self, groups: Sequence[int], rows: int, columns: list[str] | None, plan: footprint.FootprintPlan
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of row groups, at most ``rows`` at a time, with all texts written out."""
        rows = min(rows, plan.rows)
        if plan.compact:
            read = itertools.chain.from_iterable(
                self._group(group, rows, columns, plan.compact.get(group, ())) for group in groups
            )
            yield from dictionaries.written_out(read, self._file.schema_arrow, _size(self._source))
        else:
            yield from self._file.iter_batches(rows, row_groups=list(groups), columns=columns, use_threads=False)

    def _group(
        self, group: int, rows: int, columns: list[str] | None, references: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one row group with some columns as references: each group has dictionaries of its own."""
        with self._with_references(references) as file:
            yield from file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False)

    def _with_references(self, columns: tuple[str, ...]) -> pq.ParquetFile:
        return _opened(self._source, self._file.metadata, columns)

    @functools.cached_property
    def _plan(self) -> footprint.FootprintPlan:
        return self._planned(range(len(self.footer.groups)))

    def _planned(self, groups: range) -> footprint.FootprintPlan:
        with _reading(self._source) as file, _placed(self._source):
            return footprint.plan(file, file.seek(0, io.SEEK_END), self.footer, groups)

    def read(self, columns: list[str] | None = None) -> pa.Table:
        with _parquet(_named(self._source)):
            read = self._file.read(columns=columns, use_threads=False)
        return read.cast(stored_all(read.schema))

    def tail(self, rows: int, columns: list[str] | None = None) -> pa.Table:
        """Returns the last ``rows`` rows, reading only their row groups, within the memory of ``batches``."""
        sizes = self.row_groups
        first, found = len(sizes), 0
        while first and found < rows:
            first -= 1
            found += sizes[first]
        kept: deque[pa.RecordBatch] = deque()
        surplus = -rows
        with _parquet(_named(self._source)):
            for batch in self._groups(range(first, len(sizes)), READ_ROWS, columns, self._plan):
                kept.append(as_stored(batch))
                surplus += batch.num_rows
                while surplus >= kept[0].num_rows > 0:
                    surplus -= kept.popleft().num_rows
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        return pa.Table.from_batches(kept, schema).slice(max(0, surplus))

    def stats(self, offset: str = OFFSET, event_time: str = EVENT_TIME) -> SliceStats:
        """Returns the footer's statistics, or those of the columns where a writer left them out. Raises Invalid."""
        times = self._range(event_time)
        kind = self.schema.field(event_time).type if times else None
        return SliceStats(
            rows=self.rows,
            offsets=self._range(offset),
            event_times=None if times is None else (to_instant(times[0], kind), to_instant(times[1], kind)),
        )

    def _range(self, column: str) -> tuple[int, int] | None:
        """Returns least and greatest of a column of numbers, dates or times, as the file stores them."""
        if self.rows == 0 or column not in self.schema.names:
            return None
        if self.schema.names.count(column) > 1:
            raise Invalid(f"column {column!r} occurs more than once", rule="slice-system-columns")
        kind = self.schema.field(column).type
        if not (pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
            raise Invalid(
                f"column {column!r} holds {kind}", rule="slice-system-columns", hint="it is a number, a date or a time"
            )
        leaf = next(number for number, leaf in enumerate(self.footer.leaves) if leaf.path == column)
        bounds = [group.chunks[leaf].bounds for group in self.footer.groups]
        known = [bound for bound in bounds if bound is not None]
        if len(known) == len(bounds):
            return min(_signed(low) for low, _ in known), max(_signed(high) for _, high in known)
        ends = [pc.min_max(batch.column(0)) for batch in self.batches(columns=[column])]
        lows, highs = ([_raw(one[end]) for one in ends if one[end].is_valid] for end in ("min", "max"))
        return (min(lows), max(highs)) if lows else None


def _signed(value: bytes) -> int:
    return int.from_bytes(value, "little", signed=True)


def open_slice(source: Source) -> SliceFile:
    """Opens Parquet and reads its footer. Raises NotFound, Invalid when it is not Parquet, Environment."""
    if isinstance(source, Path) and not source.is_file():
        raise NotFound(f"no file {source}", rule="slice-file")
    with _parquet(_named(source)):
        raw = _read_footer(source)
        if isinstance(source, bytes):  # nobody can change them between two reads
            return SliceFile(source, raw, _parquet_file(pa.BufferReader(source)))
        alone = pa.BufferReader(b"".join((_MARK, raw, len(raw).to_bytes(_LENGTH, "little"), _MARK)))
        return SliceFile(source, raw, _opened(source, _parquet_file(alone).metadata))


def _opened(source: Source, metadata: pq.FileMetaData, references: tuple[str, ...] = ()) -> pq.ParquetFile:
    return _parquet_file(source if isinstance(source, Path) else pa.BufferReader(source), metadata, references)


def _parquet_file(
    source: Path | pa.NativeFile, metadata: pq.FileMetaData | None = None, references: tuple[str, ...] = ()
) -> pq.ParquetFile:
    return pq.ParquetFile(
        source,
        metadata=metadata,
        buffer_size=_READ_BUFFER,
        pre_buffer=False,
        memory_map=False,
        read_dictionary=list(references),
        thrift_string_size_limit=MAX_FOOTER,
        thrift_container_size_limit=MAX_FOOTER_ITEMS,
    )


def _read_footer(source: Source) -> bytes:
    """Returns the footer in Thrift: a file ends with it, its length and a mark. Raises Invalid."""
    with _reading(source) as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - len(_MARK) - _LENGTH))
        length, mark = int.from_bytes(file.read(_LENGTH), "little"), file.read()
        start = size - len(_MARK) - _LENGTH - length
        if mark == _MARK and length > MAX_FOOTER:
            raise _unreadable(source, f"a footer of {length:,} bytes", hint=f"at most {MAX_FOOTER:,}")
        if mark != _MARK or start < len(_MARK):
            raise _unreadable(source, "no footer at its end")
        file.seek(start)
        return file.read(length)


@contextlib.contextmanager
def _placed(source: Source) -> Iterator[None]:
    """Sets the file as the place of Invalid errors."""
    try:
        yield
    except Invalid as error:
        error.place = _named(source)
        raise


def _unreadable(source: Source, why: str, hint: str = "fetch it again") -> Invalid:
    return Invalid(f"{_named(source)} is not a readable Parquet file: {why}", rule=UNREADABLE, hint=hint)


def _reading(source: Source) -> BinaryIO:
    return source.open("rb") if isinstance(source, Path) else io.BytesIO(source)


def _size(source: Source) -> int:
    return source.stat().st_size if isinstance(source, Path) else len(source)


def _named(source: Source) -> str:
    return source.name if isinstance(source, Path) else f"a slice of {len(source):,} bytes"


def _raw(value: pa.Scalar) -> int:
    return int(value.value if hasattr(value, "value") else value.as_py())


def check_storable(schema: pa.Schema) -> None:
    """Raises Invalid, naming the column, for types that Parquet would read back as others."""
    for field in schema:
        _check_storable(field.type, field.name)


def _check_storable(kind: pa.DataType, place: str) -> None:
    """Checks one type, so that a slice holds what its schema says."""
    t = pa.types
    seconds = (t.is_time(kind) or t.is_timestamp(kind)) and kind.unit == "s"
    if seconds or t.is_date64(kind):
        raise Invalid(
            f"column {place!r}: Parquet has no type {kind}",
            rule="slice-type",
            hint="use milliseconds" if seconds else "use a date of 32 bits",
        )
    if t.is_decimal(kind) and not 0 <= kind.scale <= kind.precision:
        raise Invalid(
            f"column {place!r}: Parquet has no type {kind}",
            rule="slice-type",
            hint="use a scale from 0 to the precision",
        )
    for i in range(kind.num_fields):
        _check_storable(kind.field(i).type, place)


def _leaf_paths(fields: list[pa.Field], above: str = "") -> Iterator[str]:
    """Yields the leaf columns by their path in a Parquet schema."""
    for field in fields:
        kind, name = field.type, above + field.name
        if pa.types.is_struct(kind):
            yield from _leaf_paths([kind.field(i) for i in range(kind.num_fields)], name + ".")
        elif pa.types.is_map(kind):
            entries = [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
            yield from _leaf_paths(entries, name + ".key_value.")
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            yield from _leaf_paths([kind.value_field.with_name("element")], name + ".list.")
        else:
            yield name


@contextlib.contextmanager
def _parquet(name: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, EOFError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Invalid(
            f"{name} is not a readable Parquet file: {reason}", rule=UNREADABLE, hint="fetch it again"
        ) from error
    except OSError as error:
        # Arrow reports damaged pages and footers as I/O errors without an errno; those of the system have one.
        if error.errno is None:
            raise Invalid(
                f"{name} is not a readable Parquet file: {error}", rule=UNREADABLE, hint="fetch it again"
            ) from error
        raise Environment(f"cannot read {name}: {error.strerror}", rule="disk") from error


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[None]:
    try:
        yield
    except pa.ArrowNotImplementedError as error:
        raise Invalid(f"Parquet cannot hold these columns: {error}", rule="slice-schema") from error
    except OSError as error:
        raise Environment(
            f"cannot write {path}: {error}", rule="disk", hint="check that the disk is not full and not read-only"
        ) from error
