"""Reads the log of a dataset from its slices, whose descriptors the node passes over its socket.

Rows do not go through the node: Arrow maps the files, which stay readable even if the node collects them meanwhile.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from odfd_client.answer_stream import Frames
from odfd_client.errors import Bug, Environment, OdfdError
from odfd_client.transport import Transport, parse_json
from odfd_client.values import NodeMetadata

_BATCH = 1 << 16
"""Rows of a batch."""
AT_ONCE = 512
"""Files that a node gives to one request."""
OFFSET = "offset"
"""The column of offsets."""
_SAME = (pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.float32(), pa.float64())
"""Types that are the same in slices and in answers of queries, besides integers and decimals."""


@dataclass(frozen=True)
class SliceFile:
    """A mapped slice, with the offsets of its first and last row."""

    content: mmap.mmap
    first: int
    last: int
    descriptor: int | None = None
    """Kept open until ``SliceFiles.close``, for programs that read files by path."""


class SliceFiles:
    """The slices of one cut."""

    again: Callable[[], object] | None = None
    """Asks the node to hash the files again. Raises its fault if one is damaged."""

    def __init__(
        self, told: NodeMetadata, schema: pa.Schema, files: Sequence[SliceFile], rows: int, *, more: bool = False
    ) -> None:
        """``more``: the cut has later rows in more files."""
        self.told, self.schema, self._files, self._rows, self.more = told, schema, files, rows, more
        self.spans: Sequence[tuple[int, int]] = [(file.first, file.last) for file in files]
        """Offsets of the first and the last row of each slice, in order; also of slices that were only listed."""

    @property
    def paths(self) -> list[str]:
        """Paths by which other processes of this user can open the files, while the descriptors are kept open."""
        return [f"/proc/{os.getpid()}/fd/{file.descriptor}" for file in self._files if file.descriptor is not None]

    def close(self) -> None:
        """Closes the descriptors that were kept."""
        for file in self._files:
            if file.descriptor is not None:
                os.close(file.descriptor)

    @property
    def last_offset(self) -> int:
        """The offset of the last row of the log; -1: there is none."""
        return self.spans[-1][1] if self.spans else -1

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Reads a table. Raises Bug if the number of rows differs from the node's."""
        with self._readable():
            table = self._dataset(self._files).to_table(columns=list(columns) or None)
        if table.num_rows != self._rows:
            raise Bug(f"the slices have {table.num_rows} rows, not {self._rows}", rule="answer")
        return table

    def reader(self, columns: Sequence[str]) -> pa.RecordBatchReader:
        found = self._read(self._files, columns, None)
        return pa.RecordBatchReader.from_batches(found.schema, self._batches(found))

    def _batches(self, reader: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self._readable():
            yield from reader

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Names the dataset in an error of Arrow about a slice. The node had hashed the slices before it gave them."""
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            names = ", ".join(pin.name for pin in self.told.pins)
            reason = "all match their hashes, so its author published it so; " if self.check_again(error) else ""
            raise Environment(
                f"a slice of {names} cannot be read: {error}",
                rule="slice-unreadable",
                hint=f"{reason}odfctl verify {names} shows more",
            ) from error

    def check_again(self, error: Exception) -> bool:
        """Raises the fault of the slice that is damaged by now, after an error of a reader. Returns whether all are
        sound; False also if the node does not tell.

        The disk may lose bytes after the node hashed them. Only the node can tell which slice it is, and what to do.
        """
        try:
            if self.again is not None:
                self.again()
                return True
        except Environment as fault:
            raise fault from error
        except OdfdError:
            return False
        return False

    def between(self, columns: Sequence[str], first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Yields the rows of offsets ``first`` to ``last``, those of small slices in common batches.

        Raises Bug if the files have fewer or more. Rows are read in the caller's thread alone: several tasks of Spark
        share the cores already.
        """
        schema = self.schema if not columns else pa.schema([self.schema.field(name) for name in columns])
        count, expected, kept, size = 0, 0, [], 0
        for file in self._files:
            low, high = max(first, file.first), min(last, file.last)
            expected += max(0, high - low + 1)
            for batch in self._batches(_span(file, schema, low, high) if low <= high else ()):
                kept.append(batch)
                size += batch.num_rows
                if size >= _BATCH:
                    yield from _join(kept)
                    count, kept, size = count + size, [], 0
        yield from _join(kept)
        if count + size != expected:
            raise Bug(
                f"the slices have {count + size} rows of offsets {first} to {last}, not {expected}", rule="answer"
            )

    def after(self, columns: Sequence[str], offset: int) -> Iterator[pa.RecordBatch]:
        """Yields the rows after an offset, with ``columns``; reads them in the caller's thread alone.

        Threads of Arrow would still hold the files when a program ends in the middle, and abort it.
        """
        fields = [self.schema.field(name) for name in columns]
        for file in self._files:
            skipped = max(0, offset + 1 - file.first)
            for batch in self._batches(_in_this_thread(file, columns)):
                left = batch.slice(skipped)  # a slice has consecutive offsets
                skipped -= batch.num_rows - left.num_rows
                if left.num_rows:
                    found = [left.column(field.name).cast(field.type) for field in fields]
                    yield pa.RecordBatch.from_arrays(found, schema=pa.schema(fields))

    def _read(self, files: Sequence[SliceFile], columns: Sequence[str], among: Any) -> pa.RecordBatchReader:
        options = {"columns": list(columns) or None, "filter": among, "fragment_readahead": 2}
        return self._dataset(files).scanner(**options).to_reader()

    def _dataset(self, files: Sequence[SliceFile]) -> Any:
        import pyarrow.dataset as ds

        form = ds.ParquetFileFormat()
        parts = [form.make_fragment(pa.py_buffer(file.content)) for file in files]
        return ds.FileSystemDataset(parts, self.schema, form)


def _span(file: SliceFile, schema: pa.Schema, first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows of these offsets, with the types of ``schema``. Decodes no other row groups.

    A slice has consecutive offsets, so that they follow from the numbers of rows of its groups.
    """
    import pyarrow.parquet as pq

    source = pq.ParquetFile(pa.BufferReader(pa.py_buffer(file.content)), pre_buffer=False)
    said, rows = source.metadata, file.last - file.first + 1
    if said.num_rows != rows:
        raise Bug(f"a slice has {said.num_rows} rows, not {rows}", rule="answer")
    groups: list[int] = []
    start, skipped = file.first, 0
    for group in range(said.num_row_groups):
        after = start + said.row_group(group).num_rows
        if start <= last and after > first:
            skipped = skipped if groups else max(0, first - start)
            groups.append(group)
        start = after
    left = last - first + 1
    for whole in source.iter_batches(_BATCH, row_groups=groups, columns=schema.names, use_threads=False):
        batch = whole.slice(skipped, left)
        skipped -= min(skipped, whole.num_rows)
        left -= batch.num_rows
        if batch.num_rows:
            yield cast_batch(batch, schema)


def cast_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the columns of a schema with exactly its types."""
    if batch.schema.equals(schema):
        return batch
    return pa.RecordBatch.from_arrays([batch.column(each.name).cast(each.type) for each in schema], schema=schema)


def _join(batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    """Returns the rows in one batch, for receivers to whom each batch costs time."""
    if len(batches) < 2:
        return batches
    joined: Sequence[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def _in_this_thread(file: SliceFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    source = pq.ParquetFile(pa.BufferReader(pa.py_buffer(file.content)), pre_buffer=False)
    yield from source.iter_batches(_BATCH, columns=list(columns), use_threads=False)


class LogRows:
    """The rows of files after an offset, with their offsets as the last column, like an answer to a query."""

    def __init__(self, files: SliceFiles, columns: Sequence[str], mark: str, offset: int) -> None:
        self._files, self._columns, self._mark, self._offset = files, columns, mark, offset
        self.told, self.more = files.told, files.more
        self.is_checked = True

    def __enter__(self) -> LogRows:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        wanted = list(self._columns) or self._files.schema.names
        read = wanted if OFFSET in wanted else [*wanted, OFFSET]
        schema = self._files.schema
        marked = pa.schema([*(schema.field(name) for name in wanted), pa.field(self._mark, pa.int64())])
        for batch in self._files.after(read, self._offset):
            offsets = batch.column(read.index(OFFSET)).cast(pa.int64())
            columns = [batch.column(place) for place in range(len(wanted))]
            yield pa.RecordBatch.from_arrays([*columns, offsets], schema=marked)


class SliceAnswer(NamedTuple):
    """An answer of the node about the files of a log."""

    files: SliceFiles | None
    """``None``: the types of queries differ from those in slices."""
    told: NodeMetadata
    ended: bool
    """Whether another rendition has replaced the log's."""


def slice_files(transport: Transport, body: Mapping[str, object], *, keep: bool = False) -> SliceFiles | None:
    """Returns the slices of a log; ``None`` if the types of queries differ from those in slices. Raises the node's
    error.

    ``keep``: their descriptors stay open until ``close``.
    """
    return ask_slices(transport, body, keep=keep).files


def ask_slices(transport: Transport, body: Mapping[str, object], *, keep: bool = False) -> SliceAnswer:
    """Asks for the slices of a log. Raises the node's error. Everything else is as for ``slice_files``."""
    exchange = transport.ask("POST", "/node/v1alpha1/slices", body=body, patience=None)
    try:
        frames = Frames(exchange)
        told = NodeMetadata.of(parse_json(frames.one(b"H")))
        schema = given_schema(pa.ipc.read_schema(pa.py_buffer(frames.one(b"S"))))
        count = 0
        kind, content = frames.next()
        while kind == b"A":
            count += int(content)
            kind, content = frames.next()
        if kind != b"E":
            raise Bug("what came is no frame of slices", rule="query-frame")
        end = parse_json(content)
        spans = end["offsets"]
        is_listed = body.get("listed") is True
        files = [] if is_listed else _map(exchange.descriptors(), count, spans, keep=keep and schema is not None)
        found = None
        if schema is not None:
            found = SliceFiles(told, schema, files, int(end["rows"]), more=end.get("more") is True)
            found.spans = [(int(first), int(last)) for first, last in spans]
            found.again = lambda: ask_slices(transport, {**body, "again": True, "listed": False}).files
        return SliceAnswer(found, told, end.get("ended") is True)
    finally:
        exchange.close()


def _map(descriptors: Sequence[int], count: int, offsets: Sequence[tuple[int, int]], *, keep: bool) -> list[SliceFile]:
    """Maps files, and closes their descriptors. Raises Bug unless there are ``count``."""
    try:
        if len(descriptors) != count:
            raise Bug(f"{len(descriptors)} files came, not {count}", rule="answer")
        return [
            SliceFile(mmap.mmap(each, 0, prot=mmap.PROT_READ), int(first), int(last), os.dup(each) if keep else None)
            for each, (first, last) in zip(descriptors, offsets, strict=True)
        ]
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def given_schema(schema: pa.Schema) -> pa.Schema | None:
    """Returns the schema with the types that a query returns; ``None``: not all types are known here."""
    fields = []
    for field in schema:
        kind = field.type
        if pa.types.is_timestamp(kind) and kind.tz and kind.unit in ("us", "ms", "s"):
            kind = pa.timestamp("us", "UTC")
        elif not (kind in _SAME or pa.types.is_integer(kind) or pa.types.is_decimal128(kind)):
            return None
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)
