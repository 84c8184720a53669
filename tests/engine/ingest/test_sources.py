"""Sources of which there are no rows, to which columns are added, and of Debezium's changes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from pyspark.sql import SparkSession

from chain.codec.manifest import parse_manifests
from chain.data.arrow_schema import from_arrow
from chain.ids import DatasetId
from chain.model.events import DatasetKind, DatasetSnapshot, SetDataSchema, SetPollingSource
from chain.model.schema import Option
from chain.model.source import (
    FetchUrl,
    MergeAppend,
    MergeSnapshot,
    ReadCsv,
    ReadGeoJson,
    ReadJson,
    ReadNdJson,
    ReadStep,
    SqlQueryStep,
    TransformSql,
)
from chain.rules.snapshot import normalise_event
from chain.state import ChainState
from engines.contract import InvalidQuery, Success
from odfd.datasets.creation import with_columns
from odfd.ingest.alteration import Alteration, plan_alteration

# A file without rows decides no types where they are guessed.


NONE = '{"type": "FeatureCollection", "features": []}'
FEATURE = (
    '{"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {"n": 1, "city": "A"},'
    ' "geometry": null}]}'
)
FORMATS = [
    pytest.param(ReadCsv(header=True, infer_schema=True), "city,n\n", "city,n\nA,1\n", id="Csv"),
    pytest.param(ReadCsv(header=False, infer_schema=True), "\n\n", "A,1\n", id="Csv-no-header"),
    pytest.param(ReadNdJson(), "\n \n", '{"city": "A", "n": 1}\n', id="NdJson"),
    pytest.param(ReadJson(), "[]", '[{"city": "A", "n": 1}]', id="Json"),
    pytest.param(ReadGeoJson(), NONE, FEATURE, id="GeoJson"),
]


@pytest.mark.parametrize("step,empty,full", FORMATS)
def test_the_first_file_with_rows_decides_them(
    dataset: Callable[..., Any], step: ReadStep, empty: str, full: str
) -> None:
    made = dataset(MergeAppend())
    answer = made.ingest(empty, step)
    assert isinstance(answer, Success), answer
    assert answer.schema is None, "no schema is written"
    assert answer.rows is not None
    assert answer.rows.remarks == ("input-1.csv: there are no rows, so no types are guessed from it",)
    done = made.ingest(full, step)
    assert isinstance(done, Success), done
    assert {type(each) for row in made.rows() for each in row[4:] if each is not None} == {str, int}
    assert isinstance(made.ingest(empty, step), Success), "nor is it refused behind others"
    together = made.ingest([empty, full, empty], step)
    assert isinstance(together, Success), together
    assert together.rows is not None
    assert together.rows.read == 1


def test_it_still_empties_a_snapshot(dataset: Callable[..., Any]) -> None:
    made = dataset(MergeSnapshot(primary_key=("city",)))
    step = ReadCsv(header=True, infer_schema=True)
    assert isinstance(made.ingest("city,n\nA,1\nB,2\n", step), Success)
    assert isinstance(made.ingest("city,n\n", step), Success)
    assert made.last().column("op").to_pylist() == [1, 1]


def test_rows_that_a_query_makes_of_none_are_kept(dataset: Callable[..., Any]) -> None:
    made = dataset(MergeAppend())
    query = TransformSql(engine="spark", queries=(SqlQueryStep(query="select count(*) as n from input"),))
    answer = made.ingest("city\n", ReadCsv(header=True, infer_schema=True), preprocess=query)
    assert isinstance(answer, Success), answer
    assert made.last().column("n").to_pylist() == [0]


def test_texts_that_nobody_guesses_need_no_row(dataset: Callable[..., Any]) -> None:
    """Without inference every column of CSV is text, whatever its rows."""
    made = dataset(MergeAppend())
    answer = made.ingest("city,n\n", ReadCsv(header=True))
    assert isinstance(answer, Success), answer
    assert answer.schema is not None


# Columns added to a root are of the types that they would have had from its first row on.


pytestmark = pytest.mark.engine
READ = ReadCsv(header=True, ddl_schema=("event_time TIMESTAMP, k STRING",))
DAY = "2020-01-0{}T00:00:00Z"
VALUES = {
    "BOOLEAN": "true", "TINYINT": "1", "SMALLINT": "2", "INT": "3", "BIGINT": "4", "REAL": "1.5", "DOUBLE": "2.5",
    "DECIMAL(9, 2)": "1.25", "DATE": "2020-02-29", "TIMESTAMP": DAY.format(1), "TIMESTAMP(6)": DAY.format(1),
    "STRING": "x", "INT UNSIGNED": "7",
}  # fmt: skip


def altered(schema: Any, *columns: str, read: ReadCsv = READ) -> tuple[Any, ReadCsv]:
    source = SetPollingSource(fetch=FetchUrl(url="https://a.example"), read=read, merge=MergeAppend())
    state = ChainState(
        dataset=DatasetId.from_public_key(bytes(32)),
        kind=DatasetKind.ROOT,
        schema=SetDataSchema(schema=schema),
        set_polling_source=source,
    )
    done = plan_alteration(state, Alteration(action="add", columns=columns))
    changed = done.events[0]
    assert isinstance(changed, SetPollingSource)
    assert isinstance(changed.read, ReadCsv)
    return done.schema, changed.read


def test_each_type_is_taken_in_as_if_it_had_always_been_there(
    spark: SparkSession, dataset: Callable[..., Any], dataset_class: Any, tmp_path: Any
) -> None:
    columns = {f"c{place}": kind for place, kind in enumerate(VALUES)}
    header, row = ",".join(["event_time", "k", *columns]), ",".join([DAY.format(2), "b", *VALUES.values()])
    made = dataset(MergeAppend())
    made.ingest(f"event_time,k\n{DAY.format(1)},a\n", READ)
    made.schema, read = altered(made.schema, *(f"{name} {kind}" for name, kind in columns.items()))
    answer = made.ingest(f"{header}\n{row}\n", read)
    assert isinstance(answer, Success), answer
    (tmp_path / "fresh").mkdir()
    fresh = dataset_class(spark, tmp_path / "fresh", MergeAppend())
    assert isinstance(fresh.ingest(f"{header}\n{row}\n", read), Success)
    plain = {field.name: field.type for field in fresh.schema.fields}
    for field in made.schema.fields:
        if field.name in columns and field.type != plain[field.name]:
            assert "TIMESTAMP" in columns[field.name], field
            assert isinstance(field.type, Option)
    assert made.last().schema.names == fresh.last().schema.names
    assert from_arrow(made.last().schema.remove_metadata()).fields[-1] == fresh.schema.fields[-1]


def test_a_snapshot_corrects_rows_that_come_with_a_value(spark: SparkSession, dataset: Callable[..., Any]) -> None:
    made = dataset(MergeSnapshot(primary_key=("k",)))
    made.ingest(f"event_time,k\n{DAY.format(1)},a\n{DAY.format(1)},b\n", READ)
    made.schema, read = altered(made.schema, "v INT")
    answer = made.ingest(f"event_time,k,v\n{DAY.format(1)},a,1\n{DAY.format(1)},b,\n", read)
    assert isinstance(answer, Success), answer
    rows = made.last().select(["op", "k", "v"]).to_pylist()
    assert rows == [{"op": 2, "k": "a", "v": None}, {"op": 3, "k": "a", "v": 1}]


# The manifest of docs/how-to/ingest-databases.md, on envelopes as the documentation of Debezium shows them.


NOW = "2020-01-02T00:00:00Z"
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "ingest-databases.md"


def source() -> SetPollingSource:
    _, _, rest = PAGE.read_text().partition("## Follow changes by Debezium")
    found = re.search(r"```yaml\n(.*?)```", rest, re.DOTALL)
    assert found is not None
    written = yaml.safe_load(found[1])
    content = written["headers"] | written["spec"]
    text = json.dumps({"kind": "DatasetSnapshot", "version": 1, "content": content})
    (manifest,) = parse_manifests(text, "ingest-databases.md")
    snapshot = manifest.content
    assert isinstance(snapshot, DatasetSnapshot)
    (event,) = snapshot.metadata
    made = with_columns(normalise_event(event))
    assert isinstance(made, SetPollingSource)
    return made


def envelope(op: str, before: dict[str, Any] | None, after: dict[str, Any] | None, second: int) -> str:
    about = {"version": "2.7.0.Final", "connector": "postgresql", "name": "shop", "table": "customers", "lsn": second}
    at = 1_577_836_800_000 + second * 1000
    return json.dumps({"before": before, "after": after, "source": about, "op": op, "ts_ms": at})


def row(id_: int, city: str) -> dict[str, Any]:
    return {"id": id_, "city": city}


def test_each_change_of_a_table_is_taken_once(spark: SparkSession, dataset: Callable[..., Any]) -> None:
    wanted = source()
    made = dataset(wanted.merge)

    def taken(*envelopes: str) -> list[tuple[int, int, str]]:
        answer = made.ingest("\n".join([*envelopes, ""]), wanted.read, preprocess=wanted.preprocess, system_time=NOW)
        assert isinstance(answer, Success), answer
        if answer.new_offset_interval is None:
            return []
        rows = made.last().select(["op", "id", "city"]).to_pylist()
        return [(each["op"], each["id"], each["city"]) for each in rows]

    first = [
        envelope("r", None, row(1, "Graz"), 0),  # as the first snapshot reads it
        envelope("r", None, row(2, "Linz"), 0),
        envelope("c", None, row(3, "Wels"), 1),
        envelope("u", row(3, "Wels"), row(3, "Steyr"), 2),
    ]
    assert sorted(taken(*first)) == [(0, 1, "Graz"), (0, 2, "Linz"), (0, 3, "Steyr")]
    assert taken(*first[2:]) == [], "delivered again"
    changed = taken(
        envelope("u", row(1, "Graz"), row(1, "Wien"), 3),
        envelope("d", row(2, "Linz"), None, 4),
        envelope("d", row(9, "nowhere"), None, 5),
    )
    assert sorted(changed) == [(1, 2, "Linz"), (2, 1, "Graz"), (3, 1, "Wien")]
    assert taken(envelope("c", None, row(2, "Enns"), 6)) == [(0, 2, "Enns")], "a key that comes back"


def test_envelopes_are_kept_as_rows_where_each_change_is_wanted(
    spark: SparkSession, dataset: Callable[..., Any]
) -> None:
    made = dataset(MergeAppend())
    wanted = source().read
    assert wanted.schema is not None
    fields = tuple(each for each in wanted.schema.fields if each.name != "op")  # a system column
    read = msgspec.structs.replace(wanted, schema=msgspec.structs.replace(wanted.schema, fields=fields))
    lines = [envelope("c", None, row(1, "Graz"), 0), envelope("d", row(1, "Graz"), None, 1)]
    answer = made.ingest("\n".join([*lines, ""]), read)
    assert isinstance(answer, Success), answer
    assert made.last().select(["before", "after"]).to_pylist() == [
        {"before": None, "after": row(1, "Graz")},
        {"before": row(1, "Graz"), "after": None},
    ]
    again = made.ingest("\n".join([*lines, ""]), read)
    assert isinstance(again, Success), again
    refused = made.ingest('{"before": {"id": 1}, "after": null, "op": "d", "ts_ms": 0}\n', read)
    assert isinstance(refused, InvalidQuery), refused
    assert refused.rule == "read-json"
