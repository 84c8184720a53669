"""Records that cannot be read, in Spark: set aside range by range, counted, written as a slice of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from chain import instant
from chain.data.arrow_schema import from_arrow
from chain.data.ddl import parse_ddl
from chain.data.quarantine import SCHEMA, arrow_schema
from chain.ids import DatasetId
from chain.model.read_options import ON_ERROR
from chain.model.source import MergeAppend, MergeLedger, ReadCsv, ReadNdJson, ReadStep
from engines.contract import IngestBatchRequest, InvalidQuery, QuarantineTarget, Success, TransformOutcome, Vocab
from engines.output_check import measure_slice
from engines.request_control import RequestControl
from engines.spark.ingest import parse, ranges
from engines.spark.ingest.run import run_ingest

COLUMNS = "event_time TIMESTAMP, id BIGINT NOT NULL, name STRING"
DATASET = DatasetId.from_public_key(bytes(32))


def csv(said: object = "quarantine", **more: Any) -> ReadCsv:
    return ReadCsv(schema=msgspec.structs.replace(parse_ddl((COLUMNS,)), extra={ON_ERROR: said}), **more)


class Engine:
    """Requests of one dataset, each with files of its own."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.aside = folder / "aside"
        self.data = folder / "data"

    def ingest(self, read: ReadStep, *texts: str, target: bool = True, **more: Any) -> TransformOutcome:
        paths = [self.folder / f"{number}.txt" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        request = IngestBatchRequest(
            dataset_id=DATASET,
            system_time=instant.parse("2024-06-01T00:00:00Z"),
            vocab=Vocab(),
            read=read,
            merge=more.pop("merge", MergeAppend()),
            source_paths=tuple(map(str, paths)),
            next_offset=0,
            new_data_path=str(self.data),
            quarantine=QuarantineTarget(path=str(self.aside), next_offset=7, follows="f16") if target else None,
            **more,
        )
        answer = run_ingest(self.spark, request, RequestControl())
        assert not list(self.folder.glob("ingest-*")), "scratch was left behind"
        return answer


@pytest.fixture
def engine(spark: SparkSession, tmp_path: Path) -> Engine:
    return Engine(spark, tmp_path)


ROWS = [f"2024-05-01T00:00:{number:02}Z,{number},n{number}" for number in range(40)]


def test_good_and_set_aside_are_all_that_was_read(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "line_ranges", lambda view, start: ranges.line_ranges(view, start, 200))
    rows = [row if number % 4 else row.replace(f",{number},", ",x,") for number, row in enumerate(ROWS)]
    answer = engine.ingest(csv(), "\n".join(rows[:20]), "\n".join(rows[20:]))
    assert isinstance(answer, Success)
    assert answer.rows is not None
    assert (answer.rows.read, answer.rows.shaped, answer.rows.quarantined) == (40, 30, 10)
    told = pq.read_table(engine.aside)
    assert told.schema.equals(arrow_schema())
    assert told.column("offset").to_pylist() == list(range(7, 17))
    assert told.column("file").to_pylist() == ["0.txt"] * 5 + ["1.txt"] * 5
    assert told.column("line").to_pylist() == [1, 5, 9, 13, 17] * 2
    assert told.column("raw").to_pylist() == rows[::4]
    assert set(told.column("column").to_pylist()) == {"id"}
    assert measure_slice(engine.aside, SCHEMA, "offset").offset_interval.end == 16
    assert from_arrow(told.schema) == SCHEMA
    assert pq.read_table(engine.data).num_rows == 30


def test_whoever_only_looks_gets_the_same_rows(engine: Engine) -> None:
    """An observer asks for no file of what was set aside."""
    rows = ["\n".join([*ROWS, "never,1,x"])]
    first = engine.ingest(csv(), *rows)
    data = engine.data.read_bytes()
    engine.data.unlink()
    engine.aside.unlink()
    assert engine.ingest(csv(), *rows, target=False) == first
    assert engine.data.read_bytes() == data
    assert not engine.aside.exists()


def test_a_row_without_event_time_is_set_aside(engine: Engine) -> None:
    answer = engine.ingest(csv(), "\n".join([ROWS[0], ",2,none"]))
    assert isinstance(answer, Success)
    (row,) = pq.read_table(engine.aside).to_pylist()
    assert (row["column"], row["reason"], row["rule"]) == (
        "event_time",
        "a row has no event time",
        "event-time-missing",
    )
    assert row["event_time"].isoformat() == "2024-06-01T00:00:00+00:00"


REFUSED = {
    "20 of 40 records cannot be read": ("quarantine", 20, "quarantine-limit"),
    "4 of 40 records cannot be read": ({"quarantine": {"maxPercent": 9}}, 4, "quarantine-limit"),
    "more than 3 records": ({"quarantine": {"maxRows": 3}}, 4, "quarantine-limit"),
    "'x' is not an Int64": ("fail", 1, "read-value"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_more_than_may_be_set_aside_refuses_the_file(engine: Engine, reason: str) -> None:
    said, wrong, rule = REFUSED[reason]
    wrong += said == "quarantine"
    rows = [row.replace(f",{number},", ",x,") if number < wrong else row for number, row in enumerate(ROWS)]
    answer = engine.ingest(csv(said), "\n".join(rows))
    assert isinstance(answer, InvalidQuery)
    assert answer.rule == rule
    assert reason.replace("20 of", f"{wrong} of") in answer.message
    assert answer.place == "0.txt:1"
    assert not engine.aside.exists()


def test_a_file_of_which_nothing_can_be_read_is_refused(engine: Engine) -> None:
    """Also where other files can, and all of it may be bad."""
    answer = engine.ingest(csv({"quarantine": {"maxPercent": 100}}), ROWS[0], "x,x,x")
    assert isinstance(answer, InvalidQuery)
    assert (answer.rule, answer.place) == ("quarantine-limit", "1.txt:1")


def test_lines_of_json_for_a_ledger(engine: Engine) -> None:
    schema = csv().schema
    text = '{"event_time": "2024-05-01T00:00:00Z", "id": 1}\n{"id": \n{"event_time": "2024-05-01T00:00:00Z", "id": 2}\n'
    answer = engine.ingest(ReadNdJson(schema=schema), text, merge=MergeLedger(primary_key=("id",)))
    assert isinstance(answer, Success)
    assert answer.rows is not None
    assert (answer.rows.read, answer.rows.shaped, answer.rows.quarantined) == (3, 2, 1)


def test_a_time_too_far_ahead_is_told_with_its_line(engine: Engine) -> None:
    """Lines are those of the file, also behind records that were set aside."""
    answer = engine.ingest(csv(), "\n".join([ROWS[0], "never,1,x", "", "2030-01-01T00:00:00Z,3,x"]))
    assert isinstance(answer, InvalidQuery)
    assert (answer.rule, answer.place) == ("event-time-ahead", "0.txt:4")
