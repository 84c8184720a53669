"""Inputs that grow in one dimension each, and what is done with them, for ``counted_work``.

The number of columns, names, blocks, manifests and so on is a stranger's choice.
"""

from __future__ import annotations

import dataclasses
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from graphql import parse

from chain.codec.blocks import decode_block, encode_block
from chain.codec.manifest import parse_manifests, render_manifest
from chain.data.arrow_schema import differences, from_arrow, to_arrow
from chain.data.ddl import parse_ddl
from chain.data.evolution import as_in_force
from chain.data.footer import parse_footer
from chain.errors import Fault
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.libraries import pa, pq
from chain.model.block import MetadataBlock
from chain.model.events import (
    AttachmentEmbedded,
    AttachmentsEmbedded,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetPollingSource,
    SetTransform,
    TransformInput,
)
from chain.model.schema import DataField, DataSchema, Int64, List, Option, Struct
from chain.model.source import FetchUrl, MergeAppend, ReadCsv, RequestHeader, SqlQueryStep, TransformSql
from chain.multihash import Multihash
from chain.rules import check_block
from chain.rules.schema import incompatibilities
from chain.state import ChainState
from chain.statements.statement import RuleGroup, Rules, WitnessRules
from config.check import cross
from config.model import Group, Settings
from engines.query.duckdb_session import QuerySession, SessionLimits
from engines.query.text_rows import heading
from engines.spark.analysis.lexical import check_depth, read_words
from engines.spark.ingest.csv_text import read_head
from engines.spark.ingest.dialect import csv_dialect
from engines.spark.ingest.json_text import guess_json, parse_json
from engines.spark.ingest.records import array_records, feature_records, object_lines
from engines.spark.ingest.text_columns import check_once
from odfd.api.graphql_limits import check_size
from odfd.cli.sql.formats import ndjson_text
from odfd.policy.policy_merge import check_rules
from odfd.services.datasets.desired import in_order
from odfd.trust.evidence.bundle_store import BundleQuota, StoredBundle, leaving
from p2p.host.pubsub import net_subscriptions

Work = Callable[[], object]
SIZES: Final = (100, 200, 400)
CASES: dict[str, tuple[Callable[[int], Work], tuple[int, ...]]] = {}


def grows(name: str, sizes: tuple[int, ...] = SIZES) -> Callable[[Callable[[int], Work]], Callable[[int], Work]]:
    """Registers what makes an input of a size, and returns the work on it; making it is not counted."""

    def register(make: Callable[[int], Work]) -> Callable[[int], Work]:
        CASES[name] = make, sizes
        return make

    return register


def names(count: int, prefix: str = "c") -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def _fields(count: int) -> tuple[Any, ...]:

    return tuple(DataField(name=name, type=Option(inner=Int64())) for name in names(count))


def _block(event: Any) -> Work:
    """What a node does with a block of others and with one of its own: decodes, checks and shows it."""

    content = MetadataBlock(system_time=Instant(0), prev_block_hash=None, sequence_number=0, event=event)
    raw = encode_block(content).raw

    def work() -> None:
        block = decode_block(raw)
        for as_author in (False, True):
            check_block(ChainState(), block, as_author)
        render_manifest(block)

    return work


@grows("columns of a schema in a block")
def _columns(count: int) -> Work:

    schema = DataSchema(fields=_fields(count))
    block = _block(SetDataSchema(schema=schema))

    def work() -> None:
        block()
        arrow = to_arrow(schema)
        from_arrow(arrow)
        assert not differences(schema, arrow)

    return work


@grows("columns named twice in a block")
def _columns_twice(count: int) -> Work:

    schema = DataSchema(fields=_fields(count) * 2)
    block = _block(SetDataSchema(schema=schema))
    return lambda: [each() for each in (block, lambda: refused(lambda: to_arrow(schema)))]


@grows("members of a struct in a block")
def _members(count: int) -> Work:

    schema = DataSchema(fields=(DataField(name="s", type=Struct(fields=_fields(count))),))
    block = _block(SetDataSchema(schema=schema))
    return lambda: (block(), to_arrow(schema))


@grows("levels of a type in a block", (7, 14, 28))
def _nested(count: int) -> Work:

    kind: Any = Int64()
    for _ in range(count):
        kind = List(item_type=kind)
    schema = DataSchema(fields=(DataField(name="deep", type=kind),))
    block = _block(SetDataSchema(schema=schema))
    return lambda: (block(), to_arrow(schema))


@grows("letters of a column's name", (20_000, 40_000, 80_000))
def _long_name(count: int) -> Work:

    return _block(SetDataSchema(schema=DataSchema(fields=(DataField(name="n" * count, type=Int64()),))))


@grows("schemas that follow one another")
def _evolving(count: int) -> Work:

    before, after = _fields(count), (*_fields(count)[::-1], *_fields(2 * count)[count:])
    return lambda: list(incompatibilities(before, after))


@grows("keywords of a block")
def _keywords(count: int) -> Work:

    return _block(SetInfo(keywords=tuple(names(count))))


@grows("attachments of a block")
def _attachments(count: int) -> Work:

    items = tuple(AttachmentEmbedded(path=name, content="x") for name in names(count))
    return _block(SetAttachments(attachments=AttachmentsEmbedded(items=items)))


@grows("inputs and queries of a transform in a block")
def _inputs(count: int) -> Work:

    inputs = tuple(
        TransformInput(dataset_ref=str(DatasetId.from_public_key(number.to_bytes(32))), alias=f"i{number}")
        for number in range(1, count + 1)
    )
    queries = tuple(SqlQueryStep(query="select 1", alias=name) for name in names(count))
    return _block(SetTransform(inputs=inputs, transform=TransformSql(engine="spark", queries=queries)))


@grows("headers of a source in a block")
def _headers(count: int) -> Work:

    headers = tuple(RequestHeader(name=name, value="x") for name in names(count))
    return _block(
        SetPollingSource(fetch=FetchUrl(url="https://a/", headers=headers), read=ReadCsv(), merge=MergeAppend())
    )


@grows("rows of a slice of an older schema", (200, 400, 800))
def _old_rows(count: int) -> Work:

    rows = pa.table({name: [1] for name in names(count)})
    schema = pa.schema([(name, pa.int64()) for name in names(2 * count)])
    return lambda: as_in_force(rows, schema)


@grows("manifests of a file", (50, 100, 200))
def _manifests(count: int) -> Work:

    one = "kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: {}\n  kind: Root\n  metadata: []\n"
    text = "---\n".join(one.format(name) for name in names(count))

    chained = [(f"d{number}", {f"d{number + 1}"}) for number in range(count)]
    return lambda: (parse_manifests(text, "all.yaml"), in_order(chained))


@grows("columns of a manifest")
def _ddl(count: int) -> Work:

    return lambda: parse_ddl([", ".join(f"{name} INT" for name in names(count))])


@grows("mistakes of a manifest", (50, 100, 200))
def _mistakes(count: int) -> Work:

    wrong = "".join(f"  {name}: 1\n" for name in names(count))
    text = f"kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: a\n  kind: Root\n  metadata: []\n{wrong}"
    return lambda: refused(lambda: parse_manifests(text, "wrong.yaml"))


def _header(head: list[str], wanted: list[str] | None) -> Work:

    text = ",".join(head).encode() + b"\n" + b",".join([b"1"] * len(head)) + b"\n"
    schema = None if wanted is None else pa.schema([(name, pa.int64()) for name in wanted])
    return lambda: refused(lambda: read_head(text, csv_dialect(ReadCsv(header=True)), schema, "a.csv"))


@grows("columns of a CSV header")
def _csv(count: int) -> Work:
    return _header(names(count), None)


@grows("columns of a CSV header, all twice")
def _csv_twice(count: int) -> Work:
    return _header(names(count) * 2, None)


@grows("columns of a CSV header that are not those of the schema")
def _csv_others(count: int) -> Work:
    return _header(names(count), names(count, "d"))


@grows("columns of a CSV header that stand elsewhere in the schema")
def _csv_swapped(count: int) -> Work:
    return _header([*names(count), "other"], [*names(count)[::-1], "another"])


@grows("letters of a CSV header", (40_000, 80_000, 160_000))
def _csv_letters(count: int) -> Work:
    return _header(["n" * count], None)


@grows("fields of JSON objects")
def _json_fields(count: int) -> Work:

    text = json.dumps(dict.fromkeys(names(count), 1)).encode() + b"\n"
    records = object_lines(text)

    def work() -> None:
        schema = guess_json(records, "a.ndjson")
        parse_json(records, schema, "a.ndjson")
        parse_json(records, schema.remove(0).remove(0), "a.ndjson")

    return work


@grows("JSON objects")
def _json_rows(count: int) -> Work:

    text = json.dumps([{"a": number, "b": {"c": "x"}} for number in range(count)]).encode()

    def work() -> None:
        records = array_records(text, None, "a.json")
        parse_json(records, guess_json(records, "a.json"), "a.json")

    return work


@grows("features of GeoJSON, and their members")
def _features(count: int) -> Work:

    one = {"type": "Feature", "properties": {"a": 1}, "geometry": {"type": "Point", "coordinates": [1, 2]}}
    wide = one | {"properties": dict.fromkeys(names(count), 1)}
    text = json.dumps({"type": "FeatureCollection", "features": [*[one] * count, wide]}).encode()
    return lambda: feature_records(text, "a.geojson", "told")


@grows("columns of Parquet")
def _parquet(count: int) -> Work:

    out = io.BytesIO()
    table = pa.table({name: [1] for name in names(count)})
    pq.write_table(table, out)
    raw = out.getvalue()
    footer = raw[-8 - int.from_bytes(raw[-8:-4], "little") : -8]
    return lambda: [each() for each in (lambda: parse_footer(footer), lambda: check_once(table.schema, "a.parquet"))]


@grows("columns of an answer")
def _answer(count: int) -> Work:

    columns = names(count)
    return lambda: (heading(columns, "ndjson"), heading(columns, "csv"), ndjson_text(columns, [columns]))


@grows("keys and groups of a network's policy")
def _policy(count: int) -> Work:

    keys = [KeyDid.from_public_key(number.to_bytes(32)) for number in range(1, count + 1)]
    groups = tuple(RuleGroup(name=f"g{place}", keys=(key,)) for place, key in enumerate(keys))
    rules = Rules(groups=groups, witness=WitnessRules(groups=groups))
    return lambda: refused(lambda: check_rules(rules))


@grows("keys and groups of the settings")
def _settings(count: int) -> Work:

    settings = Settings()
    keys = [str(KeyDid.from_public_key(number.to_bytes(32))) for number in range(1, count + 1)]
    groups = tuple(Group(name=f"g{place}", keys=(key,)) for place, key in enumerate(keys))
    validators = dataclasses.replace(settings.policy.validators, groups=groups)
    settings = dataclasses.replace(settings, policy=dataclasses.replace(settings.policy, validators=validators))
    return lambda: cross(settings, {})


@grows("bundles of evidence")
def _bundles(count: int) -> Work:

    one = DatasetId.from_public_key(bytes(32))
    kept = [
        StoredBundle(name=Multihash.sha3_256(number.to_bytes(4)), dataset=one, size=1, at=number)
        for number in range(count)
    ]
    return lambda: leaving(kept, one, 1, BundleQuota(count=2))


def _statement(text: str) -> Work:
    folder = Path(tempfile.gettempdir())
    session = QuerySession(SessionLimits(memory=64 << 20, temporary=0, threads=1), folder, folder)
    return lambda: refused(lambda: session.prepare(text))


@grows("tables and columns of a statement")
def _joined(count: int) -> Work:
    columns = ", ".join(f"t{number}.a as c{number}" for number in range(count))
    tables = ", ".join(f"d{number} t{number}" for number in range(count))
    return _statement(f"select {columns} from {tables}")


@grows("common tables of a statement")
def _with(count: int) -> Work:
    common = ", ".join(f"c{number} as (select * from c{number - 1})" for number in range(1, count))
    return _statement(f"with c0 as (select 1), {common} select * from c{count - 1}")


@grows("brackets of a statement", (40, 80, 160))
def _brackets(count: int) -> Work:
    return _statement(f"select * from {'(select * from ' * count}a{')' * count}")


@grows("letters and names with a schema in a statement")
def _schemas(count: int) -> Work:
    return _statement(f"select {', '.join(f's.d.c{number}' for number in range(count))} from s.d")


@grows("words of a statement of a transform")
def _words(count: int) -> Work:
    text = " ".join(["(a)"] * count)
    shown = ", ".join(
        f"[@{3 * place + part},{4 * place + part}:{4 * place + part}='{'(a)'[part]}',<{part + 2}>,1:{4 * place + part}]"
        for place in range(count)
        for part in range(3)
    )
    return lambda: refused(lambda: check_depth(read_words(f"[{shown}]", text, str)))


@grows("fields and fragments of a GraphQL query")
def _graphql(count: int) -> Work:
    spread = " ".join(f"...f{number}" for number in range(count))
    fragments = " ".join(f"fragment f{number} on Query {{ ...f{number + 1} a{number} }}" for number in range(count))
    document = parse(f"{{ {spread} }} {fragments} fragment f{count} on Query {{ z }}", no_location=True)
    return lambda: refused(lambda: check_size(document, {}))


@grows("subscriptions of a gossip frame")
def _gossip(count: int) -> Work:
    topics = names(count)
    rpc = SimpleNamespace(subscriptions=[SimpleNamespace(topicid=name, subscribe=True) for name in topics])
    return lambda: net_subscriptions(rpc, frozenset(topics))


def refused(work: Work) -> None:
    """Does work that may be refused: a refusal costs too."""

    try:
        work()
    except Fault:
        return
