"""Flight SQL without sockets: what there is, statements and tickets that are kept, and messages that are none."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from chain.errors import Fault, Invalid, NotFound
from engines.flight import metadata
from engines.flight.messages import CLASSES, MAX_MESSAGE, pack_any, parse_message, unpack_any
from engines.flight.metadata import ListedDataset
from engines.flight.node_client import QueryInfo
from engines.flight.server import ACTIONS, MAX_BATCH, FlightSqlServer, RunningAnswers, pieces, token_of, words
from engines.flight.service import HELD_SECONDS, MOST_HELD, MOST_STATEMENTS, FlightSql
from worlds.mutation import walk

MUTANTS = int(os.environ.get("ODF_FUZZ", "0")) or 2000
PIN = {"name": "x", "id": "did:odf:x", "block": "f00", "sequenceNumber": 3, "at": ""}


class Begun:
    def __init__(self, parameters: list[str]) -> None:
        self.told = QueryInfo(pins=[PIN], standing="data", parameters=parameters)
        self.closed = False
        self._rows = pa.table({"n": [1]})
        self.schema = self._rows.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self._rows.to_batches())

    def interrupt(self) -> None: ...

    def close(self) -> None:
        self.closed = True


class Asked:
    """A node."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.begun: list[Begun] = []

    def query(self, body: dict[str, Any], seen: Any) -> Begun:
        self.bodies.append(body)
        self.begun.append(Begun(["1", "2"] if body["request"]["sql"].count("?") == 2 else []))
        seen(self.begun[-1])
        return self.begun[-1]

    def datasets(self, token: str) -> list[ListedDataset]:
        known = [ListedDataset(name="cities", key=("city",)), ListedDataset(name="nyc.flights")]
        return known if token else known[:1]


class Hand:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def made() -> tuple[FlightSql, Asked, Hand]:
    node, hand = Asked(), Hand()
    return FlightSql(node, "1.0", hand), node, hand


def rows(service: FlightSql, token: str, name: str, **values: Any) -> list[dict[str, Any]]:
    """Of a command that asks what there is; its columns are told as they come."""
    schema, ticket = service.info(pack_any(name, **values), token)
    answer = service.fetch(ticket, token)
    assert schema.equals(answer.schema, check_metadata=True)
    return pa.Table.from_batches(answer.batches, answer.schema).to_pylist()


def test_what_there_is() -> None:
    service, _, _ = made()
    found = rows(service, "t", "CommandGetTables")
    assert [(each["db_schema_name"], each["table_name"], each["table_type"]) for each in found] == [
        (None, "cities", "TABLE"), (None, "nyc.flights", "TABLE"),
        ("current", "cities", "VIEW"), ("current", "nyc.flights", "VIEW"),
    ]  # fmt: skip
    assert {each["table_name"] for each in rows(service, "", "CommandGetTables")} == {"cities"}
    for values, count in (
        ({"table_name_filter_pattern": "nyc%"}, 2), ({"table_name_filter_pattern": "NYC_flights"}, 2),
        ({"db_schema_filter_pattern": "curr%"}, 2), ({"table_types": ["TABLE"]}, 2), ({"catalog": "x"}, 0),
        ({"db_schema_filter_pattern": ""}, 2), ({"table_name_filter_pattern": "%a%" * 200}, 0),
    ):  # fmt: skip
        assert len(rows(service, "t", "CommandGetTables", **values)) == count, values
    assert "table_schema" in rows(service, "t", "CommandGetTables", include_schema=True)[0]
    keys = rows(service, "t", "CommandGetPrimaryKeys", table="cities")
    assert [each["column_name"] for each in keys] == ["offset"]
    keys = rows(service, "t", "CommandGetPrimaryKeys", table="cities", db_schema="current")
    assert [each["column_name"] for each in keys] == ["city"]
    assert [each["db_schema_name"] for each in rows(service, "t", "CommandGetDbSchemas")] == ["", "current"]
    for name in ("CommandGetCatalogs", "CommandGetExportedKeys", "CommandGetImportedKeys", "CommandGetCrossReference"):
        assert rows(service, "t", name) == []
    assert {each["table_type"] for each in rows(service, "t", "CommandGetTableTypes")} == {"TABLE", "VIEW"}
    info = {
        each["info_name"]: each["value"] for each in rows(service, "t", "CommandGetSqlInfo", info=[0, 3, 504, 7777])
    }
    assert info == {0: "odfd", 3: True, 504: '"'}
    types = rows(service, "t", "CommandGetXdbcTypeInfo")
    assert [each["data_type"] for each in types] == sorted(each["data_type"] for each in types)
    assert [each["type_name"] for each in rows(service, "t", "CommandGetXdbcTypeInfo", data_type=12)] == ["VARCHAR"]


def test_an_answer_that_was_begun_is_fetched_once_and_then_asked_at_its_pins() -> None:
    service, node, hand = made()
    _, ticket = service.info(pack_any("CommandStatementQuery", query="select 1"), "t")
    assert service.fetch(ticket, "t").begun is node.begun[0]
    assert service.fetch(ticket, "t").begun is node.begun[1]
    assert node.bodies[1] == {"token": "t", "request": {"sql": "select 1", "parameters": None, "pins": [PIN]}}
    assert service.fetch(ticket, "other").begun is node.begun[2]
    assert node.bodies[2]["token"] == "other"
    for _ in range(MOST_HELD + 1):
        service.info(pack_any("CommandStatementQuery", query="select 1"), "t")
    assert [each.closed for each in node.begun[3:]] == [True] + [False] * MOST_HELD
    hand.now = HELD_SECONDS
    service.forget()
    assert all(each.closed for each in node.begun[3:])


def test_statements_are_kept_for_who_prepared_them() -> None:
    service, node, _ = made()
    handle, schema, parameters = service.prepare("select ?, ?", "t")
    assert (schema.names, parameters.names) == (["n"], ["1", "2"])
    assert node.begun[0].closed
    assert node.bodies[0]["unbound"]
    values = [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), decimal.Decimal("1.5")]
    service.bind(handle, pa.table([[value] for value in values], ["1", "2"]), "t")
    command = pack_any("CommandPreparedStatementQuery", prepared_statement_handle=handle)
    service.info(command, "t")
    assert node.bodies[-1]["request"]["parameters"] == ["2024-01-01T00:00:00+00:00", "1.5"]
    for wrong in (pa.table({"1": [1, 2]}), pa.table({"1": [b"x"]}), pa.table({"1": pa.array([], pa.int32())})):
        with pytest.raises(Invalid):
            service.bind(handle, wrong, "t")
    with pytest.raises(NotFound):
        service.info(command, "other")
    named, _, _ = service.prepare("select $city", "t")
    service.bind(named, pa.table({"city": ["Graz"]}), "t")
    service.info(pack_any("CommandPreparedStatementQuery", prepared_statement_handle=named), "t")
    assert node.bodies[-1]["request"]["parameters"] == {"city": "Graz"}
    for _ in range(MOST_STATEMENTS):
        service.prepare("select 1", "t")
    with pytest.raises(NotFound):
        service.info(command, "t")
    service.close(named, "t")


@pytest.mark.parametrize(
    "kind, name",
    [
        (pa.int64(), "BIGINT"), (pa.int32(), "INTEGER"), (pa.uint32(), "UINTEGER"), (pa.string(), "VARCHAR"),
        (pa.float64(), "DOUBLE"), (pa.bool_(), "BOOLEAN"), (pa.date32(), "DATE"), (pa.timestamp("ms"), "TIMESTAMP"),
        (pa.timestamp("us", "UTC"), "TIMESTAMP WITH TIME ZONE"), (pa.decimal128(12, 3), "DECIMAL"),
        (pa.list_(pa.int8()), None),
    ],
)  # fmt: skip
def test_columns_are_told_with_their_sql_types(kind: pa.DataType, name: str | None) -> None:
    schema = pa.schema([("x", kind)]).serialize().to_pybytes()
    dataset = metadata.ListedDataset(name="d", schema=base64.b64encode(schema).decode())
    wanted = unpack_any(pack_any("CommandGetTables", include_schema=True))[1]
    (told, *_) = metadata.tables([dataset], wanted).to_pylist()
    field = pa.ipc.read_schema(pa.py_buffer(told["table_schema"])).field("x")
    said = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    assert (field.type, said.get("ARROW:FLIGHT:SQL:TYPE_NAME")) == (kind, name)
    if name == "DECIMAL":
        assert (said["ARROW:FLIGHT:SQL:PRECISION"], said["ARROW:FLIGHT:SQL:SCALE"]) == ("12", "3")


def test_times_are_told_in_the_unit_of_answers() -> None:
    schema = pa.schema([("x", pa.timestamp("ms", "UTC"))]).serialize().to_pybytes()
    dataset = metadata.ListedDataset(name="d", schema=base64.b64encode(schema).decode())
    (told, *_) = metadata.tables(
        [dataset], unpack_any(pack_any("CommandGetTables", include_schema=True))[1]
    ).to_pylist()
    assert pa.ipc.read_schema(pa.py_buffer(told["table_schema"])).field("x").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    "header, token",
    [
        ("", ""), ("Bearer abc", "abc"), ("bearer anonymous", ""), ("Basic YW5vbnltb3VzOmFub255bW91cw==", ""),
        ("Basic bWU6c2VjcmV0", "secret"), ("Basic YW5vbnltb3VzOg", ""), ("Basic YTpiYw==", "bc"),
        ("Basic YTpiYw", "bc"), ("Basic YTpiYw=", "bc"), ("Basic !", "?"), ("Digest x", "?"), ("x", "?"),
        ("Bearer", ""),
    ],
)  # fmt: skip
def test_tokens_of_headers(header: str, token: str) -> None:
    assert token_of(header) == token


@pytest.mark.parametrize(
    "name, word",
    [("CommandStatementUpdate", "CommandStatementUpdate"), ("CommandStatementSubstraitPlan", "Substrait")],
)
def test_what_is_not_spoken_is_refused_by_name(name: str, word: str) -> None:
    service, _, _ = made()
    raw = pack_any("CommandStatementQuery", query="x").replace(b"CommandStatementQuery", name.encode())
    raw = raw.replace(bytes([len("type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery")]),
                      bytes([len(f"type.googleapis.com/arrow.flight.protocol.sql.{name}")]), 1)  # fmt: skip
    with pytest.raises(Invalid, match=word):
        service.info(raw, "")
    with pytest.raises(Invalid, match="bytes"):
        unpack_any(b"\0" * (MAX_MESSAGE + 1))


@pytest.mark.slow
def test_mutated_flight_messages_are_answered_in_words() -> None:
    """Attack T-BYTES-01: mutated messages of Flight SQL.

    Defence: parsed under limits in a process without data, keys or network; each gets an answer; ODF_FUZZ sets how
    many.

    Commands, tickets and actions; ODF_FUZZ says how many of each kind.
    """
    service, _, _ = made()
    handle, _, _ = service.prepare("select ?, ?", "t")
    _, ticket = service.info(pack_any("CommandStatementQuery", query="select 1"), "t")
    commands = [
        pack_any("CommandStatementQuery", query="select 1", transaction_id=b"x"),
        pack_any("CommandPreparedStatementQuery", prepared_statement_handle=handle),
        pack_any("CommandGetTables", table_types=["TABLE"], table_name_filter_pattern="c%\\_", include_schema=True),
        pack_any("CommandGetSqlInfo", info=[1, 2, 507]),
        pack_any("CommandGetXdbcTypeInfo", data_type=12),
        pack_any("CommandGetDbSchemas", db_schema_filter_pattern="c%"),
        pack_any("CommandGetPrimaryKeys", table="cities", db_schema="current"),
        ticket,
    ]
    told = 0

    def is_answered(raw: bytes) -> bool:
        nonlocal told
        good = False
        for call in (service.info, service.columns, service.fetch, service.cancel):
            try:
                call(raw, "t")
                good = True
            except Fault as fault:
                told += bool(words(fault))
        return good

    assert walk(commands, MUTANTS, 1, is_answered) > MUTANTS // 50
    assert told > MUTANTS // 20

    server = FlightSqlServer.__new__(FlightSqlServer)
    server._service, server._under_way = service, RunningAnswers()
    actions = [
        pack_any("ActionCreatePreparedStatementRequest", query="select ?"),
        pack_any("ActionClosePreparedStatementRequest", prepared_statement_handle=handle),
        pack_any("ActionCancelQueryRequest", info=b"x"),
        CLASSES["CancelFlightInfoRequest"](info=b"info").SerializeToString(),
    ]

    refused: list[str] = []

    def is_acted(raw: bytes) -> bool:
        good = False
        for kind in (*ACTIONS, "Other"):
            try:
                server._perform(kind, raw, "t", lambda _: None)
                good = True
            except Fault as fault:
                refused.append(words(fault))
        return good

    assert walk(actions, MUTANTS, 2, is_acted) > 0
    assert all(refused)
    with pytest.raises(Invalid):
        parse_message("CommandGetTables", b"\x0a\xff")


def test_no_batch_is_larger_than_messages_that_clients_take() -> None:
    """ADBC refuses a message of more than 16 MiB, other clients in Go and Rust of more than 4."""
    numbers = pa.array(range(50_000))
    texts = pa.array(["x" * (each % 400) for each in range(50_000)])
    wide = pa.record_batch([numbers] * 20 + [texts], [f"c{each}" for each in range(21)])
    found = list(pieces(wide))
    assert pa.Table.from_batches(found).equals(pa.Table.from_batches([wide]))
    assert max(each.nbytes for each in found) <= MAX_BATCH
    assert len(found) < 2 * wide.nbytes / MAX_BATCH + 1
    large = pa.record_batch([pa.array(["x" * (MAX_BATCH + 1), "y"])], ["x"])
    assert [each.num_rows for each in pieces(large)] == [1, 1]
    worded = pa.record_batch([pa.array(["x" * MAX_BATCH, "y", "y"]).dictionary_encode()], ["x"])
    assert sum(each.num_rows for each in pieces(worded)) == 3
    assert [each.num_rows for each in pieces(wide.slice(0, 0))] == [0]
