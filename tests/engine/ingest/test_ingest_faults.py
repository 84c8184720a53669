"""What is wrong with a source is said in one message: file, line, column, text, and what to do. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain.model.source import (
    MergeAppend,
    MergeChangelogStream,
    MergeLedger,
    MergeSnapshot,
    ReadCsv,
    ReadNdJson,
    ReadParquet,
    SqlQueryStep,
    TransformSql,
)
from chain.store.files import ObjectDamaged
from engines.contract import InvalidQuery, Success

pytestmark = pytest.mark.engine

CITY = "city STRING, population BIGINT"
HEAD = "city,population\n"


@pytest.mark.parametrize(
    "text,ddl,said",
    [
        (HEAD + "A,1\nB,2,3\n", CITY, ["input-1.csv:3: 3 columns where 2 are expected: 'B,2,3'", "city, population"]),
        (HEAD + "A,1\n\nB\n", CITY, ["input-1.csv:4: 1 column where 2 are expected"]),
        (HEAD + "A,1\nB,many\n", CITY, ["input-1.csv:3: column 'population': 'many' is not an Int64"]),
        ("t\n2024-01-01\n1/2/2024\n", "t TIMESTAMP", ["input-1.csv:3: column 't': '1/2/2024'", "2024-05-01T12:30:00Z"]),
        ("t\n2024-01-01T00:00:00Z\n2024-02-30\n", "t TIMESTAMP", ["input-1.csv:3: column 't': '2024-02-30'"]),
        ("d\n2024-13-01\n", "d DATE NOT NULL", ["input-1.csv:2: column 'd': '2024-13-01' is not a Date"]),
        ("city\nA\n", CITY, ["input-1.csv:1: the header has 1 column and the schema 2; missing 'population'"]),
        ("a,b,c\n1,2,3\n", CITY, ["the header has 3 columns and the schema 2", "not in the schema: 'a', 'b', 'c'"]),
        ("population,x\n1,2\n", CITY, ["missing 'city'"]),
        (
            HEAD + "A,\n",
            "city STRING, population BIGINT NOT NULL",
            ["input-1.csv:2: column 'population' is empty, and the schema says NOT NULL"],
        ),
        (HEAD.encode() + b"\xff\xfe,1\n", CITY, ["input-1.csv:2"]),
        (b"\xffcity,population\n", CITY, ["input-1.csv:1: not UTF-8: byte 0xff", "say `encoding: cp1252`"]),
        ("offset,b\n1,2\n", "offset BIGINT, b STRING", ["column 'offset', which is the name of a system column"]),
    ],
)
def test_csv(
    text: str | bytes, ddl: str, said: list[str], dataset: Callable[..., Any], csv_step: Callable[..., Any]
) -> None:
    made = dataset(MergeAppend())
    answer = made.ingest(text, csv_step(ddl))
    assert isinstance(answer, InvalidQuery), answer
    for part in said:
        assert part in str(answer)
    assert "Traceback" not in str(answer)


def test_the_line_is_counted_across_ranges(
    dataset: Callable[..., Any], csv_step: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several workers, one file: the number is that of the file, and the first fault in the file is told."""
    from engines.spark.ingest import parse, ranges

    monkeypatch.setattr(parse, "line_ranges", lambda view, start: ranges.line_ranges(view, start, 64))
    lines = [f"city{number},{number}" for number in range(40)]
    lines[17], lines[30] = "bad,seventeen", "bad,thirty"
    answer = dataset(MergeAppend()).ingest(HEAD + "\n".join(lines), csv_step(CITY))
    assert "input-1.csv:19: column 'population': 'seventeen'" in str(answer)


def test_key_columns_must_be_there(dataset: Callable[..., Any], csv_step: Callable[..., Any]) -> None:
    answer = dataset(MergeLedger(primary_key=("town",))).ingest(HEAD + "A,1\n", csv_step(CITY))
    assert isinstance(answer, InvalidQuery)
    said = answer.message, answer.rule, answer.hint
    hint = "the columns are 'city', 'population', 'event_time'"
    assert said == ("no column 'town' to merge by", "merge-column", hint)


def test_one_key_twice_in_a_snapshot(dataset: Callable[..., Any], csv_step: Callable[..., Any]) -> None:
    answer = dataset(MergeSnapshot(primary_key=("city",))).ingest(HEAD + "A,1\nB,2\nA,3\n", csv_step(CITY))
    assert "2 rows of the snapshot have the key city='A'" in str(answer)


def test_operations_that_do_not_exist(dataset: Callable[..., Any], csv_step: Callable[..., Any]) -> None:
    made = dataset(MergeChangelogStream(primary_key=("city",)))
    answer = made.ingest("op,city\n0,A\n7,B\n", csv_step("op INT, city STRING"))
    assert "column 'op' holds 7, which is no operation" in str(answer)


def test_options_that_are_not_understood(dataset: Callable[..., Any]) -> None:
    made = dataset(MergeAppend())
    for step, said in [
        (ReadCsv(encoding="rot13"), "encoding 'rot13' is not known"),
        (ReadCsv(timestamp_format="M/d/yyyy"), "timestampFormat 'M/d/yyyy' is not read"),
        (ReadCsv(separator="||"), "separator '||' is not a single ASCII character"),
        (ReadNdJson(encoding="hex"), "encoding 'hex' is not known"),
    ]:
        assert said in made.ingest("a\n", step).message


@pytest.mark.parametrize(
    "query,said",
    [
        ("select * from nowhere", "nowhere"),
        ("selekt 1", "selekt"),
        ("select nope from input", "nope"),
        ("select city, rand() r from input", "rand: "),
        ("select city, now() r from input", "now: "),
        ("select city from input where current_date() > date'2020-01-01'", "current_date: "),
        ("select city, date'today' d from input", "'today' is another time whenever the query runs"),
        ("select reflect('java.lang.System', 'exit', 0) from input", "reflect"),
        ("select first(city) from input", "first: which row it takes is not determined"),
        ("insert overwrite directory '/tmp/x' using parquet select 1", "not a query"),
        ("set spark.sql.ansi.enabled=false", "not a query"),
        ("drop view input", "not a query"),
        ("select city, population / (population - population) q from input", "[divide-by-zero]"),
        ("select city, cast(city as bigint) n from input", "[cast-invalid-input]"),
    ],
)
def test_queries(query: str, said: str, dataset: Callable[..., Any], csv_step: Callable[..., Any]) -> None:
    steps = TransformSql(engine="spark", queries=(SqlQueryStep(query=query),))
    answer = dataset(MergeAppend()).ingest(HEAD + "A,1\n", csv_step(CITY), preprocess=steps)
    assert isinstance(answer, InvalidQuery), answer
    assert said in str(answer)
    assert "\tat " not in str(answer)


@pytest.mark.parametrize(
    "query,place,message,rule,hint",
    [
        (
            "select city,\n  100 / population as q from input",
            "input-1.csv:4",  # of the second file
            "preprocess, line 2, column 3: Division by zero in: 100 / population",
            "divide-by-zero",
            "try_divide(a, b)",
        ),
        (
            "select city, cast(city as bigint) as n from input where city <> 'A'",
            "input-1.csv:3",
            'preprocess, line 1, column 14: The value \'B\' of the type "STRING" cannot be cast to "BIGINT"',
            "cast-invalid-input",
            "try_cast(x as",
        ),
        (  # no row alone is at fault
            "select 1 / (sum(population) - 14) as q from input",
            "input-1.csv",
            "preprocess, line 1, column 8: Division by zero",
            "divide-by-zero",
            "try_divide(a, b)",
        ),
    ],
)
def test_a_value_that_a_query_cannot_take(
    query: str,
    place: str,
    message: str,
    rule: str,
    hint: str,
    dataset: Callable[..., Any],
    csv_step: Callable[..., Any],
) -> None:
    """It is told with file and line as a bad value in a file is, and without settings that a user cannot change."""
    steps = TransformSql(engine="spark", queries=(SqlQueryStep(query=query),))
    texts = [HEAD + "A,1\nB,2\n", HEAD + "C,5\nE,6\nD,0\n"]
    answer = dataset(MergeAppend()).ingest(texts, csv_step(CITY), preprocess=steps)
    assert isinstance(answer, InvalidQuery), answer
    assert (answer.place, answer.rule) == (place, rule)
    assert answer.message.startswith(message)
    assert hint in (answer.hint or "")
    assert "spark.sql" not in str(answer)


def test_a_query_that_means_nothing_says_where(dataset: Callable[..., Any], csv_step: Callable[..., Any]) -> None:
    steps = TransformSql(engine="spark", queries=(SqlQueryStep(query="select city,\n nope from input"),))
    answer = dataset(MergeAppend()).ingest(HEAD + "A,1\n", csv_step(CITY), preprocess=steps)
    assert isinstance(answer, InvalidQuery), answer
    assert (answer.place, (answer.rule or "").partition(".")[0]) == (
        "preprocess, line 2, column 2",
        "unresolved-column",
    )
    assert "select a column that the input has" in (answer.hint or "")


def test_another_engine_is_not_impersonated(dataset: Callable[..., Any], csv_step: Callable[..., Any]) -> None:
    steps = TransformSql(engine="datafusion", queries=(SqlQueryStep(query="select * from input"),))
    answer = dataset(MergeAppend()).ingest(HEAD + "A,1\n", csv_step(CITY), preprocess=steps)
    assert "preprocess requires engine 'datafusion'" in str(answer)


def test_input_order_survives_the_ranges_and_a_filter(
    dataset: Callable[..., Any], csv_step: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from engines.spark.ingest import parse, ranges

    monkeypatch.setattr(parse, "line_ranges", lambda view, start: ranges.line_ranges(view, start, 500))
    text = HEAD + "".join(f"c{number},{(number * 7919) % 1000}\n" for number in range(1000))
    steps = TransformSql(engine="spark", queries=(SqlQueryStep(query="select * from input where population % 2 = 0"),))
    made = dataset(MergeAppend())
    assert isinstance(made.ingest([text, text], csv_step(CITY), preprocess=steps), Success)
    wanted = [(number * 7919) % 1000 for number in range(1000) if (number * 7919) % 1000 % 2 == 0]
    assert made.last().column("population").to_pylist() == wanted * 2


def test_the_same_input_makes_the_same_bytes(dataset: Callable[..., Any], csv_step: Callable[..., Any]) -> None:
    from pathlib import Path

    made = dataset(MergeAppend())
    text = HEAD + "".join(f"c{number % 7},{number}\n" for number in range(500))
    steps = TransformSql(
        engine="spark", queries=(SqlQueryStep(query="select city, sum(population) p from input group by city"),)
    )
    for merge in (MergeAppend(), MergeSnapshot(primary_key=("city",)), MergeLedger(primary_key=("city",))):
        made.merge = merge
        slices = []
        for _ in range(2):
            assert isinstance(made.ingest(text, csv_step(CITY), preprocess=steps, remember=False), Success)
            slices.append(Path(made.folder / f"slice-{made.rounds}").read_bytes())
        assert slices[0] == slices[1]


@pytest.mark.parametrize("merge", [MergeLedger(primary_key=("city",)), MergeSnapshot(primary_key=("city",))])
def test_nothing_is_merged_with_a_slice_that_a_disk_has_spoilt(
    dataset: Callable[..., Any], csv_step: Callable[..., ReadCsv], merge: Any
) -> None:
    """Attack T-DISK-01: a damaged slice of history, read by a merge.

    Defence: each slice whose rows are read is hashed first, each time; the ingest fails and names it.

    A row that changed there would be corrected, or come a second time, in a slice with a hash of its own.
    """
    made = dataset(merge)
    assert isinstance(made.ingest(HEAD + "A,1\nB,2\n", csv_step(CITY)), Success)
    spoilt = Path(made.slices[0])
    raw = spoilt.read_bytes()
    at = raw.index(b"A")
    spoilt.chmod(0o644)
    spoilt.write_bytes(raw[:at] + b"C" + raw[at + 1 :])
    with pytest.raises(ObjectDamaged) as told:
        made.ingest(HEAD + "A,1\nB,3\n", csv_step(CITY))
    assert "--repair" in (told.value.hint or "")
    spoilt.write_bytes(raw)
    assert isinstance(made.ingest(HEAD + "A,1\nB,3\n", csv_step(CITY)), Success)


def test_what_is_passed_over_within_a_file_is_told(dataset: Callable[..., Any]) -> None:
    step = ReadNdJson(ddl_schema=("city STRING",))
    answer = dataset(MergeAppend()).ingest('{"city": "A", "zip": 1, "x": 2}\n{"city": "B", "zip": 3}\n', step)
    assert isinstance(answer, Success), answer
    assert answer.rows.remarks == ("fields that the schema does not name (records): zip (2), x (1)",)
    step = ReadCsv(header=True, ddl_schema=("city STRING, people BIGINT",))
    answer = dataset(MergeAppend()).ingest("city,population\nA,1\n", step)
    assert answer.rows.remarks == ("input-1.csv: columns matched by their position: 'population' as 'people'",)


def test_types_that_no_dataset_holds(dataset: Callable[..., Any], tmp_path: Path) -> None:
    """The engine says so, and of which file; it wrote a slice that nobody could hash. What is told to do works."""
    structs = pa.array([[{"a": 1}]], pa.list_(pa.struct([("a", pa.int64())])))
    pq.write_table(pa.table({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}), tmp_path / "map")
    pq.write_table(pa.table({"m": structs}), tmp_path / "structs")
    made = dataset(MergeAppend())
    refused = [made.ingest((tmp_path / name).read_bytes(), ReadParquet()) for name in ("map", "structs")]
    refused.append(made.ingest('{"m": [{"a": 1}]}', ReadNdJson()))
    assert {each.rule for each in refused} == {"column-type"}
    assert [each.place for each in refused] == [f"input-{number}.csv" for number in (1, 2, 3)]

    def queried(query: str) -> Any:
        step = SqlQueryStep(query=query)
        return made.ingest('{"m": [{"a": 1}]}', ReadNdJson(), preprocess=TransformSql(engine="spark", queries=(step,)))

    as_it_is = queried("select m from input")
    assert (as_it_is.rule, "to_json(m) as m" in as_it_is.hint) == ("column-type", True)
    assert isinstance(queried("select to_json(m) as m from input"), Success)
    assert made.last().column("m").to_pylist() == ['[{"a":1}]']
