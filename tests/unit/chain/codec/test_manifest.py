"""Manifests as people write them: every accepted spelling, and every mistake told at its line."""

from __future__ import annotations

import pytest

from chain.codec import manifest, yaml_tree
from chain.codec.manifest import Mistakes, parse_manifests
from chain.errors import Invalid
from chain.model.events import DatasetKind, DatasetSnapshot, SetInfo, SetPollingSource, SetTransform
from chain.model.schema import DataField, DataSchema, Option, String, Timestamp, UInt64
from chain.model.source import (
    FetchFilesGlob,
    Forever,
    FromPath,
    MergeAppend,
    ReadCsv,
    SourceOrdering,
    SqlQueryStep,
    TransformSql,
)
from chain.rules import check_snapshot
from chain.rules.snapshot import normalise_event

FLIGHTS = """\
# A comment
kind: DatasetSnapshot
version: 1
content:
  name: nyc.flights
  kind: {kind}
  metadata:
    - kind: {polling}
      fetch:
        kind: {glob}
        path: /data/flights-*.csv
        eventTime:
          kind: {frompath}
          pattern: 'flights-(\\d+)'
        cache: {{kind: {forever}}}
        order: {byname}
      read:
        kind: Csv
        header: true
        schema:
          fields:
            - name: carrier
              type: {string}
            - {{name: delay, type: {{kind: Option, inner: {uint64}}}}}
            - name: at
              type:
                kind: Timestamp
                unit: millisecond
      merge: {append}
    - kind: SetInfo
      description: |
        Two
        lines.
      keywords: [a, 'yes', "2020-01-01"]
"""
PASCAL = ("Root", "SetPollingSource", "FilesGlob", "FromPath", "Forever", "ByName", "String", "UInt64", "Append")
SLOTS = ("kind", "polling", "glob", "frompath", "forever", "byname", "string", "uint64", "append")


def camel(name: str) -> str:
    return name[0].lower() + name[1:]


@pytest.mark.parametrize("spelling", [str, camel, str.lower], ids=["Pascal", "camel", "lower"])
def test_spellings_of_kinds(spelling: object) -> None:
    assert callable(spelling)
    text = FLIGHTS.format(**dict(zip(SLOTS, map(spelling, PASCAL), strict=True)))
    [read] = parse_manifests(text, "flights.yaml")
    assert read.content == DatasetSnapshot(
        name="nyc.flights",
        kind=DatasetKind.ROOT,
        metadata=(
            SetPollingSource(
                fetch=FetchFilesGlob(
                    path="/data/flights-*.csv",
                    event_time=FromPath(pattern=r"flights-(\d+)"),
                    cache=Forever(),
                    order=SourceOrdering.BY_NAME,
                ),
                read=ReadCsv(
                    header=True,
                    schema=DataSchema(
                        fields=(
                            DataField(name="carrier", type=String()),
                            DataField(name="delay", type=Option(inner=UInt64())),
                            DataField(name="at", type=Timestamp(unit=_millisecond())),
                        )
                    ),
                ),
                merge=MergeAppend(),
            ),
            SetInfo(description="Two\nlines.\n", keywords=("a", "yes", "2020-01-01")),
        ),
    )
    assert read.place("metadata[0].read.header") == "flights.yaml:19"
    assert read.place("metadata[1].keywords[2].nothing") == "flights.yaml:34"


def _millisecond() -> object:
    from chain.model.schema import TimeUnit

    return TimeUnit.MILLISECOND


DERIVED = """\
kind: DatasetSnapshot
version: 1
content:
  name: nyc.long
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs:
        - datasetRef: nyc.flights
      transform:
        kind: Sql
        engine: spark
        query: select * from `nyc.flights`
"""


def test_shorthands_are_written_out() -> None:
    [read] = parse_manifests(DERIVED, "long.yaml")
    assert isinstance(read.content, DatasetSnapshot)
    assert check_snapshot(read.content) == []
    [event] = map(normalise_event, read.content.metadata)
    assert isinstance(event, SetTransform)
    assert event.inputs[0].alias == "nyc.flights"
    assert event.transform == TransformSql(engine="spark", queries=(SqlQueryStep(query="select * from `nyc.flights`"),))


def rules_of(text: str) -> set[tuple[str, str]]:
    [read] = parse_manifests(text, "a.yaml")
    assert isinstance(read.content, DatasetSnapshot)
    return {(each.rule, each.message) for each in check_snapshot(read.content)}


def test_snapshots_that_cannot_become_chains() -> None:
    assert rules_of(DERIVED.replace("Derivative", "Root")) == {
        ("event-of-kind", "metadata[0]: SetTransform belongs in a Derivative dataset")
    }
    assert rules_of(DERIVED.replace("nyc.long", "nyc..long")) == {("dataset-name", "not a dataset name: 'nyc..long'")}
    assert rules_of(DERIVED.replace("nyc.long", "some-account/nyc.long")) == set()
    seed = f"    - {{kind: Seed, datasetId: did:odf:fed01{'00' * 32}, datasetKind: Root}}\n"
    assert rules_of(DERIVED + seed) == {("snapshot", "metadata[1]: Seed is not allowed in a snapshot")}
    assert rules_of(DERIVED + "        queries: []\n") == {
        ("snapshot", "metadata[0]: both query and queries are given")
    }
    assert rules_of(DERIVED[: DERIVED.index("  metadata")] + "  metadata: []\n") == {
        ("snapshot", "a derived dataset needs one SetTransform")
    }


MISTAKES = [
    ("header: true", "header: yes", 19, "metadata[0].read.header: expected true or false, found the text 'yes'"),
    ("header: true", "headr: true", 19, "metadata[0].read.headr: unknown field 'headr'"),
    ("name: nyc.flights", "name: 12", 5, "name: expected text, found the number 12"),
    ("name: nyc.flights", "nam: x", 5, "name is missing"),
    ("name: nyc.flights", "name:", 5, "name: is empty, and must be given"),
    ("kind: Root", "kind: Rot", 6, "kind: unknown DatasetKind 'Rot'"),
    ("kind: Root", "kind: Root\n  kind: Root", 7, "key 'kind' appears twice"),
    ("merge: Append", "merge: Apend", 29, "metadata[0].merge: unknown kind 'Apend'"),
    ("merge: Append", "merge: Ledger", 29, "metadata[0].merge: primaryKey is missing"),
    ("merge: Append", "merge: [Append]", 29, "metadata[0].merge: expected fields with a 'kind', found a list"),
    ("merge: Append", "merge: {primaryKey: [a]}", 29, "metadata[0].merge: expected fields with a 'kind'"),
    ("merge: Append", "merge: !ruby Append", 29, "a tag, !ruby"),
    ("merge: Append", "merge: *nowhere", 29, "alias *nowhere refers to nothing before it"),
    ("merge: Append", "merge: {kind: Append", 30, "not YAML"),
    (
        "unit: millisecond",
        "unit: 3",
        28,
        "metadata[0].read.schema.fields[2].type.unit: expected text, found the number",
    ),
    ("[a, 'yes',", "[a, yes, 1.5,", 34, "metadata[1].keywords[2]: expected text, found the number 1.5"),
    ("version: 1", "version: 2", 3, "version: unknown version 2"),
    ("version: 1", "version: 1.0", 3, "version: unknown version 1.0"),
    ("version: 1", "version: 1\nowner: me", 4, "owner: unknown field 'owner' of a manifest"),
    ("kind: DatasetSnapshot", "kind: DataSnapshot", 2, "kind: unknown kind 'DataSnapshot'"),
    ("kind: DatasetSnapshot", "kind: [DatasetSnapshot]", 2, "kind: expected text, found a list"),
    ("version: 1", "version: [1]", 3, "version: unknown version a list"),
    ("kind: DatasetSnapshot\n", "", 2, "not a manifest"),
]


@pytest.mark.parametrize(("old", "new", "line", "message"), MISTAKES, ids=lambda value: str(value)[:20])
def test_mistakes_are_told_at_their_line(old: str, new: str, line: int, message: str) -> None:
    good = FLIGHTS.format(**dict(zip(SLOTS, PASCAL, strict=True)))
    assert old in good
    with pytest.raises(Invalid) as caught:
        parse_manifests(good.replace(old, new, 1), "flights.yaml")
    faults = caught.value.faults if isinstance(caught.value, Mistakes) else (caught.value,)
    told = "\n".join(str(fault) for fault in faults)
    assert f"flights.yaml:{line}: {message}" in told
    assert all(fault.rule for fault in faults)


def test_all_mistakes_are_told_at_once() -> None:
    text = FLIGHTS.format(**dict(zip(SLOTS, PASCAL, strict=True)))
    text = text.replace("header: true", "header: 1").replace("merge: Append", "merge: x") + "---\n" + DERIVED
    with pytest.raises(Mistakes) as caught:
        parse_manifests(text.replace("engine: spark", "engin: spark"), "two.yaml")
    assert [fault.place for fault in caught.value.faults] == [f"two.yaml:{n}" for n in (19, 29, 46, 47)]
    assert "did you mean 'engine'?" in str(caught.value)


def test_a_source_of_ours_without_columns_lacks_them_alone() -> None:
    """Its kind is known, though only columns can carry it."""
    step = "{kind: SetPollingSource, fetch: {kind: Sql, url: 'sqlite:///x', query: select 1, cursor: a}, merge: Append}"
    text = "kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: db\n  kind: Root\n  metadata:\n    - " + step
    with pytest.raises(Invalid) as caught:
        parse_manifests(text, "db.yaml")
    assert (caught.value.place, caught.value.message) == ("db.yaml:7", "metadata[0]: read is missing")


def test_several_documents_and_none() -> None:
    assert [each.content.name for each in parse_manifests(f"---\n{DERIVED}---\n---\n{DERIVED}...\n", "x")] == [  # type: ignore[union-attr]
        "nyc.long",
        "nyc.long",
    ]
    assert parse_manifests("# nothing\n", "x") == []


def test_a_laughing_billion_is_refused() -> None:
    """Attack T-BYTES-01: manifests that expand when they are read.

    Defence: aliases are counted at each use, 200,000 values, depth 100.
    """
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(Invalid, match=f"more than {yaml_tree.MAX_NODES} values"):
        parse_manifests("\n".join(lines), "bomb.yaml")


@pytest.mark.parametrize("text", ["[" * 5_000, "{a: " * 5_000, "- " * 5_000 + "a"], ids=["list", "map", "block"])
def test_depth_is_bounded(text: str) -> None:
    with pytest.raises(Invalid, match="nested deeper than"):
        parse_manifests(text, "deep.yaml")


def test_size_is_bounded() -> None:
    with pytest.raises(Invalid, match="characters of YAML"):
        parse_manifests("x" * (yaml_tree.MAX_TEXT + 1), "big.yaml")


@pytest.mark.parametrize("text", ["a: \x00", "a: \ud800", "a: b: c", "\t- x", "&a *a", "a: &x [*x]"])
def test_text_that_is_not_yaml(text: str) -> None:
    with pytest.raises(Invalid):
        parse_manifests(text, "bad.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [("yes", "yes"), ("on", "on"), ("2020-01-01", "2020-01-01"), ("0x1F", 31), ("0o17", 15),
     ("017", "017"), ("1e3", 1e3),
     ("-0", 0), ("00", "00"), ("0b11", 3), ("-0x1f", -31), ("+7", 7), ("0.50", 0.5),
     ("1.", 1.0), ("1e400", "1e400"), ("0o8", "0o8"), (".inf", ".inf"), ("<<", "<<"),
     ("!!str 5", "5"), ("! yes", "yes"),
     ("true", True), ("~", None), ("1:30", "1:30"), ("1_0", "1_0"), ("'1'", "1"), ("9" * 41, "9" * 41), (".5", 0.5)],
)  # fmt: skip
def test_scalars_follow_the_core_schema(text: str, value: object) -> None:
    [node] = yaml_tree.parse(f"[{text}]", "x")
    assert isinstance(node.value, list)
    assert node.value[0].value == value
    assert type(node.value[0].value) is type(value)


def test_json_with_mistakes() -> None:
    with pytest.raises(Mistakes, match="2 mistakes in SetInfo"):
        manifest.from_builtins(SetInfo, {"kind": "SetInfo", "description": 1, "keyword": []})
    with pytest.raises(Invalid, match="not a plain value: bytes"):
        manifest.from_builtins(SetInfo, {"description": b"x"})


def test_columns_under_schema_are_sent_to_ddl_schema() -> None:
    """What older manifests of the reference called ``schema``."""
    text = """kind: MetadataEvent
version: 1
content:
  kind: AddPushSource
  sourceName: default
  read:
    kind: NdJson
    schema:
      - id BIGINT
  merge: Append
"""
    with pytest.raises(Invalid) as caught:
        parse_manifests(text, "x.yaml")
    assert str(caught.value) == "x.yaml:9: read.schema: expected fields, found a list"
    assert caught.value.hint == "a list of texts goes under 'ddlSchema'"


def _polling(fetch: str, read: str = "{kind: Csv}") -> str:
    return (
        f"kind: MetadataEvent\nversion: 1\ncontent:\n  kind: SetPollingSource\n  fetch: {fetch}\n  read: {read}\n"
        "  merge: Append\n"
    )


@pytest.mark.parametrize(
    ("fetch", "read", "message", "hint"),
    [
        ("{kind: Zebra, url: x}", "{kind: Csv}", "fetch: unknown kind 'Zebra'",
         "known are Url, FilesGlob, Container, Mqtt, EthereumLogs, Sql, Http, Kafka, Sse, Plugin"),
        ("{url: x}", "{kind: Csv}", "fetch: expected fields with a 'kind', found fields without it",
         "kinds are Url, FilesGlob, Container, Mqtt, EthereumLogs, Sql, Http, Kafka, Sse, Plugin"),
        ("{kind: Sqll, url: x}", "{kind: Csv}", "fetch: unknown kind 'Sqll'", "did you mean 'Sql'?"),
        ("{kind: Sql, url: x, qurey: y, query: z}", "{kind: Parquet}", "fetch.qurey: unknown field 'qurey'",
         "did you mean 'query'?"),
        ("{kind: Http, url: 'https://a', zebra: y}", "{kind: Json}", "fetch.zebra: unknown field 'zebra'",
         "known are auth, body, cache, eventTime, headers, method, pages, url"),
        ("{kind: Url, url: x}", "{kind: Avrow}", "read: unknown kind 'Avrow'", "did you mean 'Avro'?"),
        ("{kind: Url, url: x}", "{kind: Zebra}", "read: unknown kind 'Zebra'",
         "known are Csv, GeoJson, EsriShapefile, Parquet, Json, NdJson, NdGeoJson, "
         "Spreadsheet, Xml, Avro, GeoPackage, Sqlite"),
        ("{kind: Url, url: x}", "{kind: Csv, skipRow: 1}", "read.skipRow: unknown field 'skipRow'",
         "did you mean 'skipRows'?"),
    ],
)  # fmt: skip
def test_messages_know_our_kinds_and_their_fields(fetch: str, read: str, message: str, hint: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_manifests(_polling(fetch, read), "x.yaml")
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_capitals_of_our_kinds_do_not_matter_either() -> None:
    written = _polling("{kind: Sql, url: 'sqlite:///x', query: y}", "{kind: Parquet}")
    lower = written.replace("kind: Sql", "kind: sql").replace("Parquet", "parquet")
    read = _polling("{kind: Url, url: x}", "{kind: Spreadsheet}")
    for one, other in ((written, lower), (read, read.replace("Spreadsheet", "spreadsheet"))):
        assert parse_manifests(one, "x")[0].content == parse_manifests(other, "x")[0].content
