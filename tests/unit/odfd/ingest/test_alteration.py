"""Alterations of schemas, planned: what is added is what a chain can take in, and the rest is refused by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.data.ddl import parse_ddl
from chain.errors import Fault, Invalid, Refused
from chain.ids import DatasetId
from chain.model import schema as odf
from chain.model.events import AddPushSource, DatasetKind, SetDataSchema, SetPollingSource
from chain.model.source import (
    FetchUrl,
    MergeAppend,
    MergeLedger,
    MergeSnapshot,
    ReadCsv,
    ReadNdJson,
    SqlQueryStep,
    TransformSql,
)
from chain.rules.schema import incompatibilities
from chain.state import ChainState
from odfd.ingest.alteration import Alteration, Altered, plan_alteration

DATASET = DatasetId.from_public_key(bytes(32))
SYSTEM = "offset BIGINT NOT NULL, op INT NOT NULL, system_time TIMESTAMP NOT NULL, event_time TIMESTAMP"
SCHEMA = parse_ddl([SYSTEM, "city STRING, n INT NOT NULL, small REAL, price DECIMAL(9, 2), day DATE, u INT UNSIGNED"])
READ = ReadCsv(header=True, ddl_schema=("event_time TIMESTAMP, city STRING",))


def polled(**more: Any) -> SetPollingSource:
    return SetPollingSource(
        **{"fetch": FetchUrl(url="https://a.example"), "read": READ, "merge": MergeAppend(), **more}
    )


def state(*sources: AddPushSource | SetPollingSource, **more: Any) -> ChainState:
    made = ChainState(**{"dataset": DATASET, "kind": DatasetKind.ROOT, "schema": SetDataSchema(schema=SCHEMA), **more})
    for source in sources:
        made = made_with(made, source)
    return made


def made_with(made: ChainState, source: AddPushSource | SetPollingSource) -> ChainState:
    if isinstance(source, SetPollingSource):
        return msgspec.structs.replace(made, set_polling_source=source)
    return msgspec.structs.replace(made, push_sources={**made.push_sources, source.source_name: source})


def altered(where: ChainState, action: Any, *columns: str, **more: Any) -> Altered:
    return plan_alteration(where, Alteration(action=action, columns=columns, **more))


def test_a_column_comes_into_the_schema_and_the_read_step() -> None:
    done = altered(state(polled()), "add", "mayor STRING", '"left at" TIMESTAMP(6)')
    source, schema = done.events
    assert isinstance(source, SetPollingSource)
    assert source.read.ddl_schema == ("event_time TIMESTAMP, city STRING", "mayor STRING", '"left at" TIMESTAMP(6)')
    assert isinstance(schema, SetDataSchema)
    assert schema.schema is not None
    assert schema.schema.fields[: len(SCHEMA.fields)] == SCHEMA.fields
    assert [field.name for field in schema.schema.fields[-2:]] == ["mayor", "left at"]
    assert done.remarks == ("the polling source reads them from files from now on",)


def test_files_that_say_their_columns_are_read_as_before() -> None:
    done = altered(state(polled(read=ReadNdJson())), "add", "mayor STRING")
    assert [type(event) for event in done.events] == [SetDataSchema]
    assert "declares no columns" in done.remarks[0]


def test_a_schema_of_a_read_step_gets_fields() -> None:
    read = ReadCsv(header=True, schema=parse_ddl(["event_time TIMESTAMP, city STRING"]))
    source = altered(state(polled(read=read)), "add", "mayor STRING").events[0]
    assert isinstance(source, SetPollingSource)
    assert source.read.schema is not None
    assert [field.name for field in source.read.schema.fields] == ["event_time", "city", "mayor"]


def shaped(**more: Any) -> SetPollingSource:
    steps = (SqlQueryStep(alias="a", query="select * from input"), SqlQueryStep(query="select event_time, city from a"))
    return polled(preprocess=TransformSql(engine="spark", version="sha3", queries=steps), **more)


def test_a_query_that_would_not_give_it_is_replaced() -> None:
    with pytest.raises(Refused, match="shapes rows by a query"):
        altered(state(shaped()), "add", "mayor STRING")
    query = "select event_time, city, mayor from a"
    source = altered(state(shaped()), "add", "mayor STRING", query=query).events[0]
    assert isinstance(source, SetPollingSource)
    assert isinstance(source.preprocess, TransformSql)
    assert source.preprocess.version == "sha3"
    assert [step.query for step in source.preprocess.queries or ()] == ["select * from input", query]
    assert source.read.ddl_schema == ("event_time TIMESTAMP, city STRING", "mayor STRING")
    computed = altered(state(shaped()), "add", "mayor STRING", query=query, computed=True).events[0]
    assert isinstance(computed, SetPollingSource)
    assert computed.read == READ


def test_what_a_merge_does_with_it_is_told() -> None:
    key = ("city",)
    by = {
        "ledger": MergeLedger(primary_key=key),
        "compare": MergeSnapshot(primary_key=key, compare_columns=("n",)),
        "corrected": MergeSnapshot(primary_key=key),
    }
    for word, merge in by.items():
        assert word in altered(state(polled(merge=merge)), "add", "m STRING").remarks[-1]


@pytest.mark.parametrize(
    ("columns", "rule"),
    [
        (("mayor STRING NOT NULL",), "schema-compatible"),
        (("City STRING",), "schema-columns"),
        (("city STRING",), "schema-columns"),
        (("OFFSET BIGINT",), "schema-columns"),
        (("a STRING", "a STRING"), "ddl-duplicate"),
        (("a STRING", "A STRING"), "schema-columns"),
        (('"a\u202eb" STRING',), "schema-columns"),
        ((f'"{"x" * 300}" STRING',), "schema-columns"),
        (("a",), None),
        (("a GEOMETRY",), None),
        (("a STRING); drop table x",), None),
        ((), "schema-columns"),
        (tuple(f"c{n} INT" for n in range(9_995)), "schema-columns"),
    ],
)
def test_columns_that_are_not_right_are_refused(columns: tuple[str, ...], rule: str | None) -> None:
    with pytest.raises(Fault) as caught:
        altered(state(polled()), "add", *columns)
    assert rule in (None, caught.value.rule)


@pytest.mark.parametrize(
    ("where", "rule"),
    [
        (state(polled(), kind=DatasetKind.DERIVATIVE), "root-only"),
        (state(polled(), schema=None), "schema-none"),
    ],
)
def test_datasets_that_have_no_columns_of_their_own_are_refused(where: ChainState, rule: str) -> None:
    with pytest.raises(Refused) as caught:
        altered(where, "add", "a STRING")
    assert caught.value.rule == rule


@pytest.mark.parametrize(
    ("action", "columns"),
    [("rename", ("city", "town")), ("drop", ("city",)), ("widen", ("n BIGINT",))],
)
def test_what_a_chain_cannot_say_is_refused_by_name(action: str, columns: tuple[str, ...]) -> None:
    with pytest.raises(Refused, match="as ODF has it") as caught:
        altered(state(polled()), action, *columns)
    assert caught.value.rule == "schema-compatible"
    assert "--as NAME" in str(caught.value.hint)


def query_of(done: Altered) -> str:
    assert done.derived is not None
    made: Any = done.derived.metadata[0]
    assert made.inputs[0].dataset_ref == str(DATASET)
    return str(made.transform.queries[-1].query)


def test_it_is_so_in_what_is_derived() -> None:
    renamed = query_of(altered(state(), "rename", "city", "a`b", derived="v2"))
    assert "`city` as `a``b`" in renamed
    assert "`event_time`" in renamed
    assert "`op`" not in renamed
    dropped = altered(state(), "drop", "city", "n", derived="v2")
    assert "city" not in query_of(dropped)
    assert [field.name for field in dropped.schema.fields] == ["event_time", "small", "price", "day", "u"]
    wide = altered(state(), "widen", "n DECIMAL(12, 2)", "small DOUBLE", "price DECIMAL(11, 3)", derived="v2")
    assert "cast(`n` as DECIMAL(12, 2)) as `n`" in query_of(wide)
    assert wide.schema.fields[2].type == odf.Decimal(precision=12, scale=2)


@pytest.mark.parametrize(
    ("action", "columns", "rule"),
    [
        ("widen", ("n SMALLINT",), "schema-widen"),
        ("widen", ("n REAL",), "schema-widen"),
        ("widen", ("n DECIMAL(11, 2)",), "schema-widen"),
        ("widen", ("price DECIMAL(10, 4)",), "schema-widen"),
        ("widen", ("price DECIMAL(9, 2)",), "schema-widen"),
        ("widen", ("u BIGINT",), "schema-widen"),
        ("widen", ("city INT",), "schema-widen"),
        ("widen", ("event_time TIMESTAMP(9)",), "schema-widen"),
        ("widen", ("op BIGINT",), "schema-system-columns"),
        ("rename", ("city",), "schema-columns"),
        ("rename", ("city", "n"), "schema-columns"),
        ("rename", ("city", "Op"), "schema-columns"),
        ("rename", ("city", ""), "schema-columns"),
        ("rename", ("event_time", "t"), "schema-system-columns"),
        ("rename", ("none", "t"), "schema-columns"),
        ("drop", ("offset",), "schema-system-columns"),
        ("drop", ("city", "n", "small", "price", "day", "u"), "schema-columns"),
    ],
)
def test_what_would_lose_values_is_refused(action: str, columns: tuple[str, ...], rule: str) -> None:
    with pytest.raises((Refused, Invalid)) as caught:
        altered(state(), action, *columns, derived="v2")
    assert caught.value.rule == rule


def test_options_of_another_action_are_refused() -> None:
    for action, more in (("add", {"derived": "x"}), ("drop", {"query": "select 1"}), ("add", {"computed": True})):
        with pytest.raises(Invalid):
            altered(state(polled()), action, "city" if action == "drop" else "m INT", **more)


COLUMN = st.builds(
    "{} {}".format, st.sampled_from(["a", "b", "city", '"ü"', "A"]), st.sampled_from(["INT", "DATE", "?"])
)


@pytest.mark.slow
@given(st.lists(st.one_of(COLUMN, st.text(max_size=20)), max_size=4))
def test_whatever_is_planned_reads_old_rows(columns: list[str]) -> None:
    try:
        done = altered(state(polled()), "add", *columns)
    except Fault:
        return
    assert not list(incompatibilities(SCHEMA.fields, done.schema.fields))
    names = [field.name.lower() for field in done.schema.fields]
    assert len(set(names)) == len(names)


@pytest.mark.slow
@given(st.text(min_size=1, max_size=30))
def test_a_name_stays_one_identifier_of_the_query(name: str) -> None:
    try:
        query = query_of(altered(state(), "rename", "city", name, derived="v2"))
    except Fault:
        return
    quoted = query.split(" as `", 1)[1]
    assert quoted.replace("``", "\0").split("`", 1)[0].replace("\0", "`") == name
