"""Questions over HTTP, asked as ASGI asks: forms of rows and schemas, what is refused, and requests that are none."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from chain import multibase
from chain.errors import Environment, Fault, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.state import ChainState
from chain.statements.keys import SigningKey
from engines.query.frames import END, HEAD, ROWS, SCHEMA, frame
from engines.query.requests import RowSelection, json_pieces
from odfd.control import wire
from odfd.kamu import commitments, replies
from odfd.kamu.application import KamuApplication
from odfd.kamu.schemas import FORMATS
from odfd.queries.askers import Bound
from odfd.queries.doors import UNPROVEN
from odfd.site.requests import is_question
from odfd.site.server import VISITOR
from worlds.mutation import walk

MUTANTS = int(os.environ.get("ODF_FUZZ", "0")) or 500
BATCH = pa.record_batch({"n": [2**60, None], "t": pa.array([0, 1], pa.timestamp("us", "UTC")), "s": ["a", "ü"]})
DATASET = DatasetId.from_public_key(b"d" * 32)
BLOCK = Multihash.sha3_256(b"block")
KEY = SigningKey(b"k" * 32)


class Answers:
    """A node with one dataset and one answer. ``fault``: raised; ``late``: after the first rows."""

    def __init__(self, fault: Exception | None = None, *, late: bool = False, proves: bool = False) -> None:
        self.fault, self.late, self.proves = fault, late, proves
        self.callers: list[str] = []
        self.asked: list[tuple[wire.QueryRequest, Mapping[str, Bound], RowSelection]] = []

    async def answer(
        self,
        request: wire.QueryRequest,
        send: Any,
        bound: Mapping[str, Bound],
        rows: RowSelection,
        *,
        caller: str,
    ) -> None:
        self.callers.append(caller)
        self.asked.append((request, bound, rows))
        if self.fault is not None and not self.late:
            raise self.fault
        assert rows.layout is not None
        pin = wire.Pin(name="x", id=str(DATASET), block=str(BLOCK), sequence_number=4)
        await send(frame(HEAD, msgspec.json.encode(wire.QueryHead(pins=(pin,), standing="data", standings=()))))
        await send(frame(SCHEMA, BATCH.schema.serialize().to_pybytes()))
        for piece in json_pieces([BATCH], BATCH.schema.names, rows.layout):
            await send(frame(ROWS, piece))
            if self.fault is not None:
                raise self.fault
        await send(frame(END, b'{"rows":2}'))

    def key(self) -> SigningKey:
        if not self.proves:
            raise Refused("this node proves no answers to others", rule=UNPROVEN)
        return KEY

    def lacks(self, bound: Bound) -> str:
        return "dataset" if bound.dataset != DATASET else "block" if bound.block != BLOCK else ""

    def states(self) -> list[tuple[str, ChainState]]:
        return [("x", self.state("x"))]

    def state(self, ref: str) -> ChainState:
        if ref != "x":
            raise NotFound("no dataset here", rule="query-dataset")
        return msgspec.structs.replace(ChainState.EMPTY, dataset=DATASET)


class Lines:
    def __init__(self) -> None:
        self.said: list[dict[str, object]] = []

    def info(self, event: str, **values: object) -> None:
        self.said.append(values)

    error = info


async def site(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def ask(
    answers: Answers,
    path: str,
    body: bytes | None = None,
    method: str | None = None,
    logger: Any = None,
    visitor: str = "127.0.0.1",
) -> tuple[int, Any, bool]:
    """Status, JSON (or bytes that are none), and whether the answer is whole."""
    path, _, query = path.partition("?")
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": body or b"", "more_body": False}

    scope = {
        "method": method or ("GET" if body is None else "POST"), "path": path, "query_string": query.encode(),
        "type": "http", "headers": [], VISITOR: visitor,
    }  # fmt: skip
    await KamuApplication(answers, site, logger or Lines())(scope, receive, send)
    text = b"".join(each["body"] for each in messages[1:])
    whole = not messages[-1].get("more_body", True)
    return messages[0]["status"], json.loads(text) if whole and text else text, whole


@pytest.mark.parametrize(
    "layout, rows",
    [
        ("JsonAoS", [{"n": 2**60, "t": "1970-01-01T00:00:00Z", "s": "a"},
                     {"n": None, "t": "1970-01-01T00:00:00.000001Z", "s": "ü"}]),
        ("JsonAoA", [[2**60, "1970-01-01T00:00:00Z", "a"], [None, "1970-01-01T00:00:00.000001Z", "ü"]]),
        ("JsonSoA", {"n": [2**60, None], "t": ["1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000001Z"],
                     "s": ["a", "ü"]}),
    ],
)  # fmt: skip
async def test_rows_in_each_layout(layout: str, rows: object) -> None:
    status, told, whole = await ask(Answers(), f"/query?query=select%201&format={layout.lower()}&include=schema")
    assert (status, whole, told["output"]["data"], told["output"]["dataFormat"]) == (200, True, rows, layout)
    assert told["output"]["schema"]["fields"][1] == {
        "name": "t", "data_type": {"Timestamp": ["Microsecond", "UTC"]}, "nullable": True, "dict_id": 0,
        "dict_is_ordered": False, "metadata": {},
    }  # fmt: skip
    assert told["odfd"]["pins"][0]["sequenceNumber"] == 4


@pytest.mark.parametrize("layout", ["JsonAoS", "JsonAoA", "JsonSoA"])
def test_no_rows_and_many_are_one_value(layout: Any) -> None:
    many = pa.record_batch({"n": pa.array(range(9000))})
    assert json.loads(b"".join(json_pieces([], ["n"], layout))) == ({"n": []} if layout == "JsonSoA" else [])
    rows = json.loads(b"".join(json_pieces([many.slice(0, 0), many, many], ["n"], layout)))
    numbers = rows["n"] if layout == "JsonSoA" else [row["n"] if layout == "JsonAoS" else row[0] for row in rows]
    assert numbers == [*range(9000), *range(9000)]


def test_schemas_in_each_format() -> None:
    field = pa.field("v", pa.int32())
    schema = pa.schema({
        "u": pa.uint8(), "d": pa.decimal128(9, 2), "l": pa.list_(field), "s": pa.struct([field]),
        "m": pa.map_(pa.string(), pa.int32()), "e": pa.dictionary(pa.uint8(), pa.string()), "b": pa.binary(),
        "w": pa.time64("us"), "i": pa.month_day_nano_interval(),
    })  # fmt: skip
    types = {each["name"]: each["data_type"] for each in FORMATS["ArrowJson"](schema)["fields"]}
    assert (types["u"], types["d"], types["e"]) == ("UInt8", {"Decimal128": [9, 2]}, {"Dictionary": ["UInt8", "Utf8"]})
    assert types["l"]["List"]["name"] == types["s"]["Struct"][0]["name"] == "v"
    assert types["m"]["Map"][0]["data_type"]["Struct"][0]["name"] == "key"
    assert (types["b"], types["w"], types["i"]) == ("Binary", {"Time64": "Microsecond"}, {"Interval": "MonthDayNano"})
    known = pa.schema({"v": pa.int32()})
    assert FORMATS["OdfJson"](known)["fields"][0]["name"] == "v"
    assert FORMATS["OdfYaml"](known).startswith("fields:")
    with pytest.raises(Invalid):
        FORMATS["OdfJson"](schema)


@pytest.mark.parametrize(
    "path, body, status, word",
    [
        ("/query?query=select%201&include=proof", None, 501, "prove"),
        ("/odata", None, 501, "OData"),
        ("/odata/x", None, 501, "OData"),
        ("/query", None, 400, "query"),
        ("/query?query=a&query=b", None, 400, "twice"),
        ("/query?query=a&limit=-1", None, 400, "limit"),
        ("/query?query=a&limit=100000001", None, 400, "limit"),
        ("/query?query=a&format=csv", None, 400, "csv"),
        ("/query?query=a&schemaFormat=Parquet", None, 400, "Parquet"),
        ("/query?query=a&queryDialect=SqlSpark", None, 400, "SqlSpark"),
        ("/query?query=a&other=1", None, 400, "other"),
        ("/query", b'{"query": "a", "other": 1}', 400, "other"),
        ("/query", b'{"query": "a", "parameters": ' + b"[" * 100_000, 400, "recursion"),
        ("/query", b"x" * ((1 << 20) + 1), 413, "bytes"),
        ("/query", b'{"query": "a", "datasets": [{"id": "x", "alias": "x"}]}', 400, "identity"),
        ("/nothing/tail", None, 404, "dataset"),
        ("/x/tail?limit=x", None, 400, "limit"),
        ("/x/tail", b"{}", 405, "POST"),
        ("/verify", None, 405, "GET"),
        ("/x/metadata?include=all", None, 400, "all"),
        ("/x/metadata?other=1", None, 400, "other"),
    ],
)
async def test_what_is_no_question_is_refused_by_name(path: str, body: bytes | None, status: int, word: str) -> None:
    answers = Answers()
    said, told, whole = await ask(answers, path, body)
    assert (said, whole) == (status, True), told
    assert word in told["message"] + told.get("place", ""), told
    assert not answers.asked


async def test_faults_are_told_before_rows_and_cut_the_answer_after() -> None:
    for fault, status in ((Invalid("x"), 400), (Refused("x"), 403), (Refused("x", rule="query-busy"), 503)):
        assert (await ask(Answers(fault), "/query?query=a"))[:2][0] == status
    lines = Lines()
    secret = Environment("cannot read /home/alice/slice", rule="object-damaged")
    status, told, _ = await ask(Answers(secret), "/query?query=a", logger=lines)
    assert (status, "alice" in str(told), lines.said[0]["rule"]) == (503, False, "object-damaged")
    status, _, whole = await ask(Answers(secret, late=True), "/query?query=a")
    assert (status, whole) == (200, False)
    with pytest.raises(ZeroDivisionError):
        await ask(Answers(ZeroDivisionError()), "/query?query=a")


async def test_a_dataset_without_columns_has_an_empty_tail() -> None:
    status, told, _ = await ask(Answers(), "/x/tail?schemaFormat=arrow-json")
    assert (status, told["data"], told["schema"]) == (200, [], {"fields": [], "metadata": {}})


def test_paths_of_the_layout_are_the_sites() -> None:
    for path in ("/", "/x", "/x/refs/head", "/query/refs/head", "/verify/data/f1620", "/x/data/tail"):
        assert not is_question(path), path


async def proven(sql: str = 'select 1 as "größe"') -> dict[str, Any]:
    body = json.dumps({"query": sql, "include": ["proof"], "limit": 3}).encode()
    status, told, _ = await ask(Answers(proves=True), "/query", body)
    assert status == 200, told
    return {name: told[name] for name in ("input", "subQueries", "commitment", "proof")}


def signed(document: dict[str, Any], **changes: str) -> bytes:
    """Changed, and signed again."""
    asked = copy.deepcopy(document)
    asked["commitment"] |= changes
    asked["proof"]["proofValue"] = multibase.encode_base64url(KEY.sign(commitments.canonical(asked["commitment"])))
    return json.dumps(asked).encode()


async def test_an_answer_is_proven_and_run_again() -> None:
    document = await proven()
    assert document["input"]["datasets"] == [{"id": str(DATASET), "alias": "x", "blockHash": str(BLOCK)}]
    assert document["proof"]["verificationMethod"] == str(KEY.did)
    answers = Answers()
    status, told, _ = await ask(answers, "/verify", json.dumps(document).encode())
    assert (status, told) == (200, {"ok": True}), "whoever checks need not prove"
    assert answers.asked[0][2] == RowSelection(layout="JsonAoS", limit=3, prove=True)
    status, told, _ = await ask(Answers(), "/verify", signed(document, outputHash="f00"))
    assert (status, told["error"]["kind"]) == (400, "VerificationFailed::OutputMismatch")
    assert told["error"]["actual_hash"] == document["commitment"]["outputHash"]
    for name, value, kind in (
        ("id", str(DatasetId.from_public_key(b"e" * 32)), "DatasetNotFound"),
        ("blockHash", str(Multihash.sha3_256(b"other")), "DatasetBlockNotFound"),
    ):
        other = copy.deepcopy(document)
        other["input"]["datasets"][0][name] = value
        status, told, _ = await ask(Answers(), "/verify", signed(other, inputHash=commitments.hash_of(other["input"])))
        assert (status, told["error"]["kind"]) == (400, f"VerificationFailed::{kind}")
        assert value in told["error"].values()
    loose = document | {"input": {"query": "select 1"}}
    status, told, _ = await ask(Answers(), "/verify", signed(loose, inputHash=commitments.hash_of(loose["input"])))
    assert (status, told["hint"]) == (400, "datasets with blockHash")


async def test_a_proof_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "MAX_PROVEN", 40)
    for more, status, rule in (({}, 403, "query-prove"), ({"require": "data"}, 400, "request")):
        body = json.dumps({"query": "select 1", "include": ["Proof"], **more}).encode()
        said, told, whole = await ask(Answers(proves=True), "/query", body)
        assert (said, told["rule"], whole) == (status, rule, True)


async def test_a_commitment_is_checked_before_its_query_runs() -> None:
    document = await proven()
    forged = json.loads(signed(document))
    forged["proof"]["proofValue"] = json.loads(signed(document, outputHash="f01"))["proof"]["proofValue"]
    for body, kind in (
        (signed(document, inputHash="f00"), "InputHash"),
        (signed(document, subQueriesHash="f00"), "SubQueriesHash"),
        (json.dumps(forged).encode(), "BadSignature"),
    ):
        status, told, _ = await ask(Answers(), "/verify", body)
        assert (status, told["ok"], told["error"]["kind"]) == (400, False, f"InvalidRequest::{kind}")


async def test_each_question_is_of_the_block_that_it_comes_from() -> None:
    """Of none from this machine: a proxy stands before many."""
    for visitor, caller in (("203.0.113.9", "203.0.113.0/24"), ("2001:db8:1:2::3", "2001:db8:1::/48"), ("::1", "")):
        answers, refusing = Answers(proves=True), Answers(Refused("x"))
        await ask(answers, "/query?query=select%201", visitor=visitor)
        await ask(answers, "/query", b'{"query": "select 1", "include": ["Proof"]}', visitor=visitor)
        await ask(answers, "/verify", signed(await proven()), visitor=visitor)
        await ask(refusing, "/node/v1alpha1/query", b'{"sql": "select 1"}', visitor=visitor)
        assert (answers.callers, refusing.callers) == ([caller] * 3, [caller])


@pytest.mark.slow
async def test_mutated_http_requests_are_answered_in_words() -> None:
    """Attack T-BYTES-01: mutated requests over HTTP.

    Defence: parsed under limits into values; each gets an answer; ODF_FUZZ sets how many.

    Bodies and query strings; ODF_FUZZ says how many of each.
    """
    body = json.dumps({
        "query": "select 1", "queryDialect": "SqlDataFusion", "dataFormat": "JsonAoS", "include": ["Input"], "skip": 0,
        "schemaFormat": "ArrowJson", "datasets": [{"id": str(DATASET), "alias": "x", "blockHash": None}], "limit": 9,
        "parameters": {"a": [1]}, "require": "data",
    }).encode()  # fmt: skip
    seeds = {
        "/query": [body, b'{"query":"select 1"}'],
        "/verify": [signed(await proven())],
        "/query?": [b"query=select%201&format=jsonsoa&include=input,schema&skip=1&limit=2"],
        "/x/tail?": [b"skip=1&limit=2&dataFormat=JsonAoA&schemaFormat=OdfJson"],
        "/x/metadata?": [b"include=seed,vocab,schema&schemaFormat=ArrowJson"],
    }
    raws: list[tuple[str, bytes]] = []
    for number, (path, parents) in enumerate(seeds.items()):
        count = MUTANTS if path in ("/query", "/verify") else MUTANTS // 5
        walk(parents, count, number, lambda raw, path=path: raws.append((path, raw)) is None)  # type: ignore[misc]
    answers = Answers()
    statuses: set[int] = set()
    for path, raw in raws:
        in_path = path.endswith("?")
        target = path + raw.decode("latin-1").replace("?", "") if in_path else path
        said, told, whole = await ask(answers, target, None if in_path else raw)
        assert whole
        assert said < 300 or told.get("message") or told["error"]["message"], raw
        statuses.add(said)
    assert statuses >= {200, 400}
    assert not isinstance(answers.fault, Fault)
