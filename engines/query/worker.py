"""Serves one query inside its process: reads requests on standard input, writes frames on standard output, then ends.

First comes the statement; the answer (``HEAD``) names its tables. Then come the views, whose files are in place by
then, and rows follow. The node may close standard input at any time: it then ends the process from outside.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import msgspec
import pyarrow as pa

from chain.data.json_values import plain_rows
from chain.errors import Fault, Refused
from engines.query.duckdb_session import PreparedStatement, QuerySession, SessionLimits, over_views
from engines.query.frames import COLUMNS, END, FAULT, HEAD, LINES, MAX_FRAME, PIECE, PLAIN, ROWS, SCHEMA, frame, header
from engines.query.requests import Execute, FaultReport, Lines, Prepare, SavedRows, TableNamed, TablesNamed, json_pieces
from engines.query.temporal import with_backquotes

_T = TypeVar("_T")
MAX_REQUEST: Final = 64 << 20
"""Most bytes of a request: names of a hundred thousand files."""
PLAIN_ROWS: Final = 1000
"""Most rows of one frame; fewer if they are large."""


SMALL: Final = 1 << 14
"""Pieces of fewer bytes are written together with others; larger ones are not copied."""


class _Rows:
    """A file for Arrow to write to: the bytes come out as frames, small pieces together."""

    closed = False

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._waiting = bytearray()

    def write(self, data: bytes) -> int:
        view = memoryview(data).cast("B")
        if len(view) < SMALL:
            self._waiting += view
            if len(self._waiting) < PIECE:
                return len(view)
        self._leave()
        if len(view) >= SMALL:
            for start in range(0, len(view), PIECE):
                piece = view[start : start + PIECE]
                self._out.write(header(ROWS, len(piece)))
                self._out.write(piece)
        return len(view)

    def flush(self) -> None:
        self._leave()
        self._out.flush()

    def _leave(self) -> None:
        if self._waiting:
            self._out.write(frame(ROWS, bytes(self._waiting)))
            self._waiting.clear()

    def close(self) -> None:
        """Does nothing, as the process goes on."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


class _Counted:
    """Iterates over batches and counts their rows."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch


def main(argv: Sequence[str] | None = None) -> int:
    """Serves one query. ``argv``: arguments in place of those of the process."""
    parser = argparse.ArgumentParser()
    for name, kind in (
        ("inputs", Path),
        ("temporary", Path),
        ("memory", int),
        ("temporary-bytes", int),
        ("threads", int),
    ):
        parser.add_argument(f"--{name}", type=kind, required=True)
    args = parser.parse_args(argv)
    # Other output of the process must not get between frames.
    out = os.fdopen(os.dup(1), "wb", buffering=1 << 16)
    os.dup2(2, 1)
    limits = SessionLimits(memory=args.memory, temporary=args.temporary_bytes, threads=args.threads)
    answering = QuerySession(limits, args.inputs, args.temporary)
    answering.warm()
    requests = sys.stdin.buffer
    try:
        _answer(answering, requests, out)
    except Fault as fault:
        out.write(frame(FAULT, msgspec.json.encode(FaultReport.of(fault))))
    except EOFError:
        return 0
    out.flush()
    return 0


def _answer(answering: QuerySession, requests: BinaryIO, out: BinaryIO) -> None:
    prepared = answering.prepare(_request(requests, Prepare).sql)
    tables = tuple(TableNamed.of(table, prepared.statement) for table in prepared.tables)
    out.write(frame(HEAD, msgspec.json.encode(TablesNamed(tables=tables, parameters=tuple(prepared.parameters)))))
    out.flush()
    wanted = _request(requests, Execute)
    if wanted.save_bytes:
        # DuckDB bounds its temporary data, and not a file that it is told to write.
        resource.setrlimit(resource.RLIMIT_FSIZE, (wanted.save_bytes, wanted.save_bytes))
        out.write(frame(END, msgspec.json.encode(_save(answering, prepared, wanted))))
        return
    reader = answering.run(
        prepared, wanted.views, wanted.places, wanted.parameters, explain=wanted.explain, wanted=wanted.rows
    )
    counted = _Counted(reader)
    sink = _Rows(out)
    with answering.translated_faults(prepared, wanted.views, wanted.places):
        if wanted.pipe:
            _write_apart(counted, reader.schema, wanted.pipe, out)
        elif wanted.rows.lines:
            _write_lines(counted, reader.schema, wanted.rows.lines, out)
        elif wanted.rows.plain:
            _write_plain(counted, reader.schema, out)
        elif wanted.rows.layout is None:
            _write_arrow(counted, reader.schema, sink)
        else:
            out.write(frame(SCHEMA, reader.schema.serialize().to_pybytes()))
            for piece in json_pieces(counted, reader.schema.names, wanted.rows.layout):
                sink.write(piece)
                sink.flush()
    out.write(frame(END, msgspec.json.encode({"rows": counted.rows})))


def _save(answering: QuerySession, prepared: PreparedStatement, wanted: Execute) -> SavedRows:
    if wanted.answer:
        rows = answering.save_answer(prepared, wanted.views, wanted.places, Path(wanted.answer))
        return SavedRows(rows=rows)
    if wanted.folds:
        folds = zip(wanted.folds, wanted.views, strict=True)
        return SavedRows(rows=sum(answering.save_fold(view, Path(path)) for path, view in folds))
    answering.bind(prepared, wanted.views, wanted.places)  # checks it, though another engine runs it
    views = zip(wanted.saves, wanted.views, strict=True)
    rows = sum(answering.save(view, Path(path)) for path, view in views if path)
    return SavedRows(rows=rows, statement=with_backquotes(over_views(prepared, wanted.views, wanted.places)))


def _write_arrow(batches: Iterable[pa.RecordBatch], schema: pa.Schema, sink: _Rows) -> None:
    stream = pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema)
    for batch in batches:
        stream.write_batch(batch)
        sink.flush()
    stream.close()
    sink.flush()


def _write_apart(counted: _Counted, schema: pa.Schema, pipe: str, out: BinaryIO) -> None:
    """Writes rows to a named pipe that is being read, large pieces without a copy. Computes the first batch before it
    opens the pipe, so that a fault until then is the only output."""
    batches = iter(counted)
    first = list(itertools.islice(batches, 1))
    with Path(pipe).open("wb", buffering=SMALL) as file:
        out.write(frame(SCHEMA, schema.serialize().to_pybytes()))
        out.flush()
        with pa.ipc.new_stream(file, schema) as stream:
            for batch in itertools.chain(first, batches):
                stream.write_batch(batch)
                file.flush()


def _write_lines(batches: Iterable[pa.RecordBatch], schema: pa.Schema, form: Lines, out: BinaryIO) -> None:
    """Writes rows as lines of text, for files and pipes."""
    from engines.query.text_rows import heading, render_lines  # most processes answer without Arrow's functions

    first = heading(schema.names, form)
    out.write(frame(COLUMNS, msgspec.json.encode([(field.name, str(field.type)) for field in schema])))
    out.write(frame(LINES, bytes(4) + first))
    for batch in batches:
        for rows, text in render_lines(batch, form):
            for start in range(0, len(text), PIECE):
                piece = text[start : start + PIECE]
                out.write(header(LINES, 4 + len(piece)))
                out.write((rows if start + PIECE >= len(text) else 0).to_bytes(4, "big"))
                out.write(piece)
        out.flush()


def _write_plain(batches: Iterable[pa.RecordBatch], schema: pa.Schema, out: BinaryIO) -> None:
    """Writes rows as JSON, for clients that would load Arrow only to show them."""
    out.write(frame(COLUMNS, msgspec.json.encode([(field.name, str(field.type)) for field in schema])))
    for batch in batches:
        # A row that is larger than a piece has a frame of its own.
        step = max(1, min(PLAIN_ROWS, batch.num_rows * PIECE // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, step):
            content = msgspec.json.encode(plain_rows(batch.slice(start, step)))
            if len(content) > MAX_FRAME:
                raise Refused(
                    "a row of the answer is too large to be shown",
                    rule="query-row",
                    hint="-o arrow or -o parquet gives it; or ask for less of it",
                )
            out.write(frame(PLAIN, content))
        out.flush()


def _request(requests: BinaryIO, kind: type[_T]) -> _T:
    length = int.from_bytes(_exactly(requests, 4), "big")
    if length > MAX_REQUEST:
        raise EOFError
    return msgspec.json.decode(_exactly(requests, length), type=kind)


def _exactly(requests: BinaryIO, count: int) -> bytes:
    data = requests.read(count)
    if len(data) < count:
        raise EOFError
    return data
