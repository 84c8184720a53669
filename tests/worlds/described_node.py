"""A daemon that answers what an export asks about one derived dataset, from a table in memory."""

from __future__ import annotations

import argparse
import datetime as dt
import decimal
import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from chain.data.json_values import plain_rows
from chain.errors import NotFound
from chain.instant import parse
from chain.statements.keys import SigningKey
from engines.query.frames import COLUMNS, END, HEAD, LINES, PLAIN, ROWS
from engines.query.text_rows import heading, render_lines
from odfd.control import wire
from odfd.services.queries.answer_proofs import AnswerProof, Signer

BLOCK = "f1620" + "aa" * 32
DID = "did:odf:fed01" + "a" * 64
PUBLIC, PRIVATE, AWAY = (f"did:odf:fed01{letter * 64}" for letter in "bcd")
WHEN = dt.datetime(2024, 5, 1, 6, 0, 0, 123000, tzinfo=dt.UTC)
TABLE = pa.table(
    {
        "offset": pa.array([0, 1], pa.int64()),
        "event_time": pa.array([WHEN, None], pa.timestamp("ms", "UTC")),
        "local": pa.array([dt.datetime(2024, 5, 1, 6), None], pa.timestamp("ms")),
        "day": pa.array([dt.date(2024, 5, 1), None]),
        "hour": pa.array([dt.time(6, 30), None], pa.time64("us")),
        "station": ["graz", 'w,"ien'],
        "celsius": pa.array([decimal.Decimal("9.50"), None], pa.decimal128(5, 2)),
        "share": [0.25, None],
        "ok": [True, None],
        "big": pa.array([2**60, None], pa.int64()),
        "tags": [["a", "b"], []],
        "place": [{"x": 1}, None],
        "raw": [b"\x01", None],
    }
)


class DescribedNode:
    """Answers about one derived dataset too, with three inputs of which one is shown to others."""

    def __init__(self, table: pa.Table, **about: Any) -> None:
        self._table = table
        self._about = about
        self.most = 1 << 20
        """Bytes of an answer that can be proven."""

    @contextmanager
    def frames(self, call: Any, _meanwhile: object = None) -> Iterator[Iterator[tuple[bytes, bytes]]]:
        yield self._frames(call.request)

    def _frames(self, request: wire.QueryRequest) -> Iterator[tuple[bytes, bytes]]:
        lines: Any = request.lines
        proof: dict[str, Any] | None = None
        pin = wire.Pin(name="weather", id=DID, block=BLOCK, sequence_number=7)
        head = wire.QueryHead(pins=(pin,), standing="data", standings=())
        yield HEAD, msgspec.json.encode(head)
        if lines:
            yield COLUMNS, msgspec.json.encode([(field.name, str(field.type)) for field in self._table.schema])
            yield LINES, bytes(4) + heading(self._table.schema.names, lines)
            for rows, text in (each for batch in self._table.to_batches() for each in render_lines(batch, lines)):
                yield LINES, rows.to_bytes(4, "big") + text
        elif request.plain:
            yield COLUMNS, msgspec.json.encode([(field.name, str(field.type)) for field in self._table.schema])
            yield PLAIN, msgspec.json.encode([row for batch in self._table.to_batches() for row in plain_rows(batch)])
        else:
            sink = io.BytesIO()
            with pa.ipc.new_stream(sink, self._table.schema) as stream:
                stream.write_table(self._table)
            yield ROWS, sink.getvalue()
            if request.prove:
                signer = Signer(
                    lambda: SigningKey(b"n" * 32),
                    lambda: parse("2024-05-01T06:00:00Z"),
                    Path(tempfile.gettempdir()),
                    self.most,
                )
                with AnswerProof(signer) as signing:
                    signing.take(sink.getvalue())
                    proof = signing.sign(request.sql, head, self._table.num_rows)
        yield END, msgspec.json.encode(wire.QueryEnd(rows=self._table.num_rows, proof=proof))

    def do(self, call: Any) -> Any:
        name = call.path.partition("/datasets/")[2]
        match name.partition("/")[2]:
            case "detail" if name.startswith("did"):
                answer: Any = wire.DatasetDetail(dataset=self._view(name.partition("/")[0].replace("%3A", ":")))
            case "detail":
                answer = detail(**self._about)
            case "schema":
                fields = (wire.Column(name="station", type="String", optional=False, comment="where"),)
                answer = wire.Schema(ref="weather", fields=fields)
        assert isinstance(answer, call.kind())
        return argparse.Namespace(value=answer)

    def _view(self, identity: str) -> wire.DatasetView:
        if identity == AWAY:
            raise NotFound("there is no such dataset", rule="no-dataset")
        return view("readings" if identity == PUBLIC else "secret", identity, published=identity == PUBLIC)


def view(name: str, identity: str, *, published: bool) -> wire.DatasetView:
    return wire.DatasetView(name=name, id=identity, kind="derivative", blocks=3, published=published)


def detail(**about: Any) -> wire.DatasetDetail:
    fields: dict[str, Any] = {
        "dataset": view("Weather daily", DID, published=True),
        "description": "By day",
        "keywords": ("weather",),
        "inputs": (f"readings ({PUBLIC})", f"secret ({PRIVATE})", f"away ({AWAY})", "never resolved"),
        "input_ids": (PUBLIC, PRIVATE, AWAY),
        "updated_at": "2024-05-02T00:00:00Z",
        "license": wire.License(
            short_name="CC BY", name="Attribution", spdx_id="CC-BY-4.0", website_url="https://cc.example"
        ),
    }
    return wire.DatasetDetail(**(fields | about))
