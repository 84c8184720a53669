"""Reads the log of a dataset from its slices, whose descriptors the node passes over its socket.

Rows do not go through the node: Arrow maps the files, which stay readable whatever the node collects meanwhile.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from odfd_client.answer_stream import Frames
from odfd_client.errors import Bug
from odfd_client.transport import Transport, parsed
from odfd_client.values import NodeMetadata

_SAME = (pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.float32(), pa.float64())
"""Types that queries give as they lie in slices, besides integers and decimals."""


class SliceFiles:
    """The files of one cut."""

    def __init__(self, told: NodeMetadata, schema: pa.Schema, files: Sequence[mmap.mmap], rows: int) -> None:
        self.told, self.schema, self._files, self._rows = told, schema, files, rows

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Reads a table. Raises Bug where the number of rows differs from the node's."""
        table = self._dataset().to_table(columns=list(columns) or None)
        if table.num_rows != self._rows:
            raise Bug(f"the slices have {table.num_rows} rows, not {self._rows}", rule="answer")
        return table

    def reader(self, columns: Sequence[str]) -> pa.RecordBatchReader:
        return self._dataset().scanner(columns=list(columns) or None, fragment_readahead=2).to_reader()

    def _dataset(self) -> Any:
        import pyarrow.dataset as ds

        form = ds.ParquetFileFormat()
        parts = [form.make_fragment(pa.py_buffer(each)) for each in self._files]
        return ds.FileSystemDataset(parts, self.schema, form)


def slice_files(transport: Transport, body: Mapping[str, object]) -> SliceFiles | None:
    """Returns the files of a query; ``None`` where its types differ from those of slices. Raises the node's error."""
    exchange = transport.ask("POST", "/slices", body=body, patience=None)
    try:
        frames = Frames(exchange)
        told = NodeMetadata.of(parsed(frames.one(b"H")))
        schema = _given(pa.ipc.read_schema(pa.py_buffer(frames.one(b"S"))))
        count = 0
        kind, content = frames.next()
        while kind == b"A":
            count += int(content)
            kind, content = frames.next()
        if kind != b"E":
            raise Bug("what came is no frame of slices", rule="query-frame")
        descriptors = exchange.descriptors()
        try:
            if len(descriptors) != count:
                raise Bug(f"{len(descriptors)} files came, not {count}", rule="answer")
            files = [mmap.mmap(each, 0, prot=mmap.PROT_READ) for each in descriptors]
        finally:
            for each in descriptors:
                os.close(each)
        return None if schema is None else SliceFiles(told, schema, files, int(parsed(content)["rows"]))
    finally:
        exchange.close()


def _given(schema: pa.Schema) -> pa.Schema | None:
    """The types that a query gives; ``None``: not all are known here."""
    fields = []
    for field in schema:
        kind = field.type
        if pa.types.is_timestamp(kind) and kind.tz and kind.unit in ("us", "ms", "s"):
            kind = pa.timestamp("us", "UTC")
        elif not (kind in _SAME or pa.types.is_integer(kind) or pa.types.is_decimal128(kind)):
            return None
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)
