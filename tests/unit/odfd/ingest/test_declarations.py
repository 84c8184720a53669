"""What a manifest may say of columns: alterations, times, values, and queries that only name them."""

from __future__ import annotations

import json
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.data.ddl import parse_ddl
from chain.errors import Fault, Invalid, Refused
from chain.ids import DatasetId
from chain.model import schema as odf
from chain.model.events import (
    AddData,
    AddPushSource,
    DatasetKind,
    Seed,
    SetDataSchema,
    SetInfo,
    SetPollingSource,
    SetTransform,
    TransformInput,
)
from chain.model.schema import DataSchema
from chain.model.source import (
    EventTimeSource,
    FetchFilesGlob,
    FetchUrl,
    FromPath,
    FromSystemTime,
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
from odfd.ingest.alteration import Alteration, Altered, change_kind_of, plan_alteration
from odfd.ingest.correction import nothing_of, value_of
from odfd.ingest.driver import pull_root
from odfd.ingest.push import PushTerms, push_files
from odfd.ingest.source_manifest import of_any_engine, ours, renamed_columns
from worlds import kamu_cases
from worlds.fake_engine import FakeEngine
from worlds.kamu_cases import SUITES

# Alterations of schemas, planned: what is added is what a chain can take in, and the rest is refused by name.

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
    """Attack T-QUERY-01: a column's name that contains quotes or terminal commands, or looks like another.

    Defence: a name is one quoted identifier of the generated query; invisible characters, and names that differ only in
    case, are refused.
    """
    try:
        query = query_of(altered(state(), "rename", "city", name, derived="v2"))
    except Fault:
        return
    quoted = query.split(" as `", 1)[1]
    assert quoted.replace("``", "\0").split("`", 1)[0].replace("\0", "`") == name


# Whether a changed declaration evolves a dataset or rewrites it: by what it says of columns, and of nothing else.

COLUMNS = ("city STRING", "people INT")
SYSTEM_COLUMNS = ("offset BIGINT", "op INT", "system_time TIMESTAMP", "event_time TIMESTAMP")


def a_state(rows: int = 3) -> ChainState:
    schema = SetDataSchema(schema=DataSchema(fields=parse_ddl((*SYSTEM_COLUMNS, *COLUMNS)).fields))
    return ChainState(schema=schema, last_data=AddData(prev_offset=rows - 1))


def a_source(*columns: str, query: str | None = None) -> AddPushSource:
    steps = None if query is None else TransformSql(engine="spark", queries=(SqlQueryStep(query=query),))
    read = ReadCsv(ddl_schema=columns or None)
    return AddPushSource(source_name="default", read=read, preprocess=steps, merge=MergeAppend())


@pytest.mark.parametrize(
    "source",
    [
        a_source(*COLUMNS),
        a_source("event_time DATE", *COLUMNS),
        a_source("city STRING", "people STRING", query="select city, 1 as people from input"),
        a_source(),
    ],
)
def test_what_the_chain_takes_in_evolves(source: AddPushSource) -> None:
    found = change_kind_of("cities", a_state(), [source], 0)
    assert found is not None
    assert found.word == "evolves"
    assert "3 rows so far stay as they are" in found.text
    assert "not kept" in found.text


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (("city STRING", "people BIGINT"), "column 'people' changes its type from Int32 to Int64"),
        (("city STRING",), "column 'people' is removed"),
        ((*COLUMNS, "mayor STRING"), "column 'mayor' is new"),
    ],
)
def test_what_the_chain_refuses_rewrites(columns: tuple[str, ...], said: str) -> None:
    found = change_kind_of("cities", a_state(), [a_source(*columns)], 2)
    assert found is not None
    assert found.word == "rewrites"
    assert said in found.text
    assert "odfctl rendition create cities, then odfctl rendition handover cities N" in found.text
    lost = change_kind_of("cities", a_state(), [a_source(*columns)], 0)
    assert lost is not None
    assert "no rendition can be made of them" in lost.text


def test_what_concerns_no_rows_says_nothing() -> None:
    other = a_source("city STRING", "people STRING")
    assert change_kind_of("cities", a_state(), [SetInfo(description="x")], 1) is None
    assert change_kind_of("cities", msgspec.structs.replace(a_state(), schema=None), [other], 1) is None


def test_a_query_is_taken_over() -> None:
    query = TransformSql(engine="spark", queries=(SqlQueryStep(query="select 1"),))
    event = SetTransform(inputs=(TransformInput(dataset_ref="did:odf:x", alias="a"),), transform=query)
    found = change_kind_of("towns", a_state(1), [event], 0)
    assert found is not None
    assert (found.word, found.text) == (
        "evolves",
        "the next transaction takes over from the query so far; 1 row so far stays as it is",
    )


def test_a_column_that_is_added_to_the_chain_too_evolves() -> None:
    wider = (*COLUMNS, "mayor STRING")
    schema = SetDataSchema(schema=parse_ddl((*SYSTEM_COLUMNS, *wider)))
    found = change_kind_of("cities", a_state(), [a_source(*wider), schema], 1)
    assert found is not None
    assert found.word == "evolves"


# Queries that only name columns mean the same in every engine; no others are taken for such.


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("select\n  ts as event_time,\n  temp\nfrom input\n", {"ts": "event_time", "temp": "temp"}),
        ("SELECT `a b` AS c FROM input;", {"a b": "c"}),
        ("select A, b from INPUT", {"A": "A", "b": "b"}),
    ],
)
def test_columns_and_their_names_are_found(query: str, columns: dict[str, str]) -> None:
    assert renamed_columns(query) == columns


@pytest.mark.parametrize(
    "query",
    [
        "select * from input", "select a + 1 as b from input", "select f(a) as b from input",
        "select 1 as b from input", "select 'a' as b from input", "select distinct a from input",
        "select a from input where b", "select a b from input",
        "select a from input limit 1", "select current_timestamp as t from input", "select null as t from input",
        "select a from other", "select a, from input", "select i.a from input", "select a, a as b from input",
        "select a from input; select b from input", "select a as b as c from input",
        "with x as (select a) select a from input",
        'select "a" as b from input', "select a as b -- why\nfrom input", "",
    ],
)  # fmt: skip
def test_any_other_query_is_left_to_the_engine_that_it_names(query: str) -> None:
    assert renamed_columns(query) is None


def test_keys_are_named_as_after_the_query() -> None:
    transform = TransformSql(engine="datafusion", version="1", query="select day as event_time, id from input")
    columns = of_any_engine(transform)
    assert columns is not None
    snapshot = MergeSnapshot(primary_key=("id",), compare_columns=("day", "event_time"))
    for merge, after in (
        (MergeAppend(), MergeAppend()),
        (MergeLedger(primary_key=("day", "id")), MergeLedger(primary_key=("event_time", "id"))),
        (snapshot, MergeSnapshot(primary_key=("id",), compare_columns=("event_time", "event_time"))),
    ):
        assert ours(transform, merge, columns) == (TransformSql(engine="spark", query=transform.query), after)
    for other in (
        None,
        TransformSql(engine="Spark", query=transform.query),
        TransformSql(engine="flink", queries=(SqlQueryStep(query="select a from input"),)),
        TransformSql(engine="flink", query="select sum(a) as b from input"),
    ):
        assert of_any_engine(other) is None


# Values that a person writes, as columns hold them: exactly, or refused.


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.string(), "", ""),
        (pa.string(), " 007 ", " 007 "),
        (pa.int8(), "-128", -128),
        (pa.int64(), "9223372036854775807", 2**63 - 1),
        (pa.uint64(), "18446744073709551615", 2**64 - 1),
        (pa.int32(), "+7", 7),
        (pa.decimal128(5, 2), "1.5", Decimal("1.50")),
        (pa.decimal128(38, 10), "1e-10", Decimal("1e-10")),
        (pa.float64(), "0.1", 0.1),
        (pa.float64(), "-inf", float("-inf")),
        (pa.bool_(), "TRUE", True),
        (pa.date32(), "2024-02-29", date(2024, 2, 29)),
        (pa.time64("us"), "12:30:00.000001", time(12, 30, 0, 1)),
    ],
)
def test_a_value_is_what_was_written(kind: pa.DataType, text: str, value: object) -> None:
    found = value_of(text, pa.field("c", kind))
    assert (found.type, found.to_pylist()) == (kind, [value])


@pytest.mark.parametrize("text", ["2024-05-01T12:30:00Z", "2024-05-01T14:30:00.000+02:00", "2024-05-01 12:30:00"])
def test_times_are_instants(text: str) -> None:
    (found,) = value_of(text, pa.field("c", pa.timestamp("ms", "UTC"))).cast(pa.int64()).to_pylist()
    assert found == 1_714_566_600_000


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int8(), "128"),
        (pa.uint8(), "-1"),
        (pa.int64(), "1.0"),
        (pa.int64(), "0x1F"),
        (pa.int64(), "1_000"),
        (pa.int64(), "٣"),
        (pa.int64(), ""),
        (pa.decimal128(5, 2), "1.555"),
        (pa.decimal128(5, 2), "1000"),
        (pa.decimal128(5, 2), "nan"),
        (pa.float64(), "1e999"),
        (pa.float32(), "1e39"),
        (pa.float64(), "1_0"),
        (pa.bool_(), "1"),
        (pa.date32(), "2023-02-29"),
        (pa.timestamp("ms", "UTC"), "2024-05-01T12:30:00.0001Z"),
        (pa.timestamp("ms", "UTC"), "tomorrow"),
        (pa.time32("s"), "12:30:00.5"),
    ],
)
def test_what_a_column_cannot_hold_is_refused_by_its_name(kind: pa.DataType, text: str) -> None:
    with pytest.raises(Invalid, match="column 'c'") as refused:
        value_of(text, pa.field("c", kind))
    assert refused.value.hint


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.binary(), pa.struct([("a", pa.int64())])])
def test_nested_values_are_not_written_as_texts(kind: pa.DataType) -> None:
    with pytest.raises(Refused, match="cannot be written as one text"):
        value_of("x", pa.field("c", kind))


def test_null_is_for_columns_that_may_be() -> None:
    assert nothing_of(pa.field("c", pa.int64())).to_pylist() == [None]
    with pytest.raises(Invalid, match="NOT NULL"):
        nothing_of(pa.field("c", pa.int64(), nullable=False))


# Who says which time rows have that bring none: only a person, or the manifest; and what the chain tells of others.

GUESSED = ReadCsv(header=True, infer_schema=True)
DECLARED = ReadCsv(header=True, ddl_schema=("event_time TIMESTAMP, city STRING, population BIGINT",))


class Asked(FakeEngine):
    """Keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Any] = []

    async def ingest(self, request: Any, on_progress: Any = lambda: None) -> Any:
        self.requests.append(request)
        return await super().ingest(request, on_progress)


@pytest.mark.parametrize(
    "event_time,fills,source_time",
    [
        (None, False, None),
        (FromSystemTime(), True, "now"),
        (FromPath(pattern=r"(\d{4}-\d{2}-\d{2})"), True, "2020-02-03T00:00:00Z"),
    ],
)
async def test_a_polling_source_fills_event_times_when_its_manifest_says_so(
    bench: Any, event_time: EventTimeSource | None, fills: bool, source_time: str | None
) -> None:
    fetch = FetchFilesGlob(path=str(bench.folder / "source" / "*.csv"), event_time=event_time)
    source = SetPollingSource(fetch=fetch, read=DECLARED, merge=MergeAppend())
    bench.append(None, [Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT), source])
    bench.engine = Asked()
    bench.write("2020-02-03.csv", "2020-01-01T00:00:00Z,A,1")
    await pull_root(bench.deps, DATASET)
    (request,) = bench.engine.requests
    assert request.fills_event_time is fills
    said = request.source_event_time
    assert (said is None) == (source_time is None)
    assert said is None or source_time == "now" or instant.render(said) == source_time


async def test_a_push_fills_event_times_when_it_names_one(bench: Any) -> None:
    bench.append(None, [Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT)])
    bench.engine = Asked()
    one, other = (bench.write(f"{name}.csv", f"2020-01-01T00:00:00Z,{name},1") for name in "ab")
    await push_files(bench.deps, DATASET, [one], PushTerms(read=DECLARED))
    await push_files(bench.deps, DATASET, [other], PushTerms(event_time=instant.parse("2020-01-01T00:00:00Z")))
    assert [each.fills_event_time for each in bench.engine.requests] == [False, True]


async def test_files_whose_columns_are_guessed_need_the_times_that_earlier_ones_had(bench: Any) -> None:
    bench.append(None, [Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT)])
    bench.engine = Asked()
    first, second, third = (bench.write(f"{name}.csv", f"2020-01-01T00:00:00Z,{name},1") for name in "abc")
    await push_files(bench.deps, DATASET, [first], PushTerms(read=GUESSED))
    await push_files(bench.deps, DATASET, [second])
    await push_files(bench.deps, DATASET, [third], PushTerms(event_time=instant.parse("2020-01-01T00:00:00Z")))
    assert [each.needs_event_time for each in bench.engine.requests] == [False, True, False]


async def test_rows_that_are_stamped_go_on_being_stamped(bench: Any) -> None:
    """Also after a watermark that was set by hand, and after times that were named."""
    bench.append(None, [Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT)])
    bench.engine = Asked()

    def untimed(name: str) -> Any:
        path = bench.folder / "source" / f"{name}.csv"
        path.write_text(f"city,population\n{name},1\n")
        return path

    await push_files(bench.deps, DATASET, [untimed("a")], PushTerms(read=GUESSED))
    await push_files(bench.deps, DATASET, [untimed("b")], PushTerms(event_time=instant.parse("2020-01-01T00:00:00Z")))
    head, last = bench.chains.chain(DATASET).head(), bench.events()[-1]
    assert isinstance(last, AddData)
    later = instant.Instant(bench.tick() // instant.MILLISECOND * instant.MILLISECOND)
    bench.append(
        head, [AddData(prev_offset=1, new_watermark=later)], system_time=instant.Instant(later + instant.SECOND)
    )
    bench.clock += 10 * instant.SECOND
    await push_files(bench.deps, DATASET, [untimed("c")])
    assert [each.needs_event_time for each in bench.engine.requests] == [False, False, False]


# The table of kamu's tests of ingest says what they are, and by which tests of this tree it is shown.


TESTS = Path(__file__).parents[3]
PAGE = TESTS.parent / "docs" / "reference" / "kamu-compatibility.md"
BEGIN = "<!-- The table is tests/worlds/kamu_cases.py; tests/unit/odfd/ingest/test_declarations.py writes it. -->\n"
CASES = [case for cases in SUITES.values() for case in cases]


def written(page: str) -> str:
    """The page with the table as it is now."""
    before, begin, behind = page.partition(BEGIN)
    assert begin, "the page has the table's place"
    rest = behind[behind.index("\n## ") :] if "\n## " in behind else ""
    return f"{before}{begin}\n{kamu_cases.table()}{rest}"


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text()
    assert page == written(page)


def test_a_test_that_is_there_shows_each_answer() -> None:
    for case in CASES:
        path, _, name = case.shown.partition("::")
        assert f"def {name}(" in (TESTS / path).read_text(), case.name
        assert bool(case.why) == (case.answer != "kamu's"), case.name


def test_each_case_that_was_written_down_is_in_the_table() -> None:
    known = {f"test_{case.name}" for case in CASES}
    assert len(known) == len(CASES)
    for name in ("writer", "ingest", "merge_strategies"):
        golden = json.loads((TESTS / "golden" / "ingest" / f"{name}.json").read_text())
        vectors = golden["merge"] + golden["snapshot_project"]["vectors"] if "merge" in golden else golden["vectors"]
        assert {each["test"] for each in vectors} <= known


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
