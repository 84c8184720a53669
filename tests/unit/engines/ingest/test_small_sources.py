"""Few new rows of a root: parsed, merged and written in this process, without a Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain import instant
from chain.data.ddl import parse_ddl
from chain.ids import DatasetId
from chain.model.source import MergeAppend, MergeLedger, MergeSnapshot, ReadCsv, ReadJson, ReadNdJson, ReadParquet
from engines.contract import IngestBatchRequest, InvalidQuery, Success, Vocab
from engines.request_control import RequestControl
from engines.spark.ingest import parse
from engines.spark.ingest.run import run_ingest

COLUMNS = parse_ddl(("event_time TIMESTAMP, id BIGINT, name STRING",))
ROWS = 1_000
CSV = "event_time,id,name\n" + "".join(f"2024-05-01T00:{n // 60:02}:{n % 60:02}Z,{n},n{n}\n" for n in range(ROWS))
OBJECTS = [
    f'{{"event_time": "2024-05-01T00:{n // 60:02}:{n % 60:02}Z", "id": {n}, "name": "n{n}"}}' for n in range(ROWS)
]
TEXTS: dict[str, tuple[str, Any]] = {
    "csv": (CSV, ReadCsv(schema=COLUMNS, header=True)),
    "guessed": (CSV, ReadCsv(header=True, infer_schema=True)),
    "ndjson": ("\n".join(OBJECTS), ReadNdJson(schema=COLUMNS)),
    "json": (f"[{','.join(OBJECTS)}]", ReadJson(schema=COLUMNS)),
}


def no_spark() -> NoReturn:
    raise AssertionError("a Spark session was opened")


def request(folder: Path, source: Path, read: Any, **more: Any) -> IngestBatchRequest:
    return IngestBatchRequest(
        dataset_id=DatasetId.from_public_key(bytes(32)),
        system_time=instant.parse("2024-06-01T00:00:00Z"),
        vocab=Vocab(),
        read=read,
        merge=more.pop("merge", MergeAppend()),
        source_paths=(str(source),),
        next_offset=0,
        new_data_path=str(folder / "slice"),
        **more,
    )


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(
    "merge", [MergeAppend(), MergeLedger(primary_key=("id",)), MergeSnapshot(primary_key=("id",))], ids=type
)
def test_a_first_thousand_rows_need_no_spark(name: str, merge: Any, tmp_path: Path) -> None:
    text, read = TEXTS[name]
    source = tmp_path / "source"
    source.write_text(text)
    answer = run_ingest(no_spark, request(tmp_path, source, read, merge=merge), RequestControl())
    assert isinstance(answer, Success), answer
    assert answer.new_offset_interval is not None
    assert pq.read_table(tmp_path / "slice").column("id").to_pylist() == list(range(ROWS))


def test_later_keys_of_a_ledger_need_no_spark(tmp_path: Path) -> None:
    text, read = TEXTS["csv"]
    source, merge = tmp_path / "source", MergeLedger(primary_key=("event_time", "id"))
    source.write_text(text)
    first = run_ingest(no_spark, request(tmp_path, source, read, merge=merge), RequestControl())
    assert isinstance(first, Success)
    (tmp_path / "slice").rename(tmp_path / "earlier")
    source.write_text(text.replace("2024-05-01", "2024-05-02"))
    later = request(
        tmp_path, source, read, merge=merge, schema=first.schema, prev_data_paths=(str(tmp_path / "earlier"),)
    )
    answer = run_ingest(no_spark, msgspec.structs.replace(later, next_offset=ROWS), RequestControl())
    assert isinstance(answer, Success), answer
    assert answer.rows is not None
    assert answer.rows.shaped == ROWS
    assert pq.read_table(tmp_path / "slice").num_rows == ROWS


def test_a_fault_names_its_line(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text(CSV.replace(",7,n7\n", ",seven,n7\n"))
    answer = run_ingest(no_spark, request(tmp_path, source, TEXTS["csv"][1]), RequestControl())
    assert isinstance(answer, InvalidQuery)
    assert answer.place == "source:9"


@pytest.mark.parametrize("kind", ["text", "parquet"])
def test_what_may_be_large_goes_to_spark(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Parquet file by the rows that it may have, since its size says little of them."""
    source = tmp_path / "source"
    if kind == "text":
        monkeypatch.setattr(parse, "SMALL", len(CSV) // 2)
        source.write_text(CSV)
    else:
        monkeypatch.setattr(parse, "SMALL", 100_000)
        rows = 10_000
        times = pa.array([0] * rows, pa.timestamp("ms", "UTC"))
        pq.write_table(pa.table({"event_time": times, "id": [1] * rows, "name": ["a"] * rows}), source)
        assert source.stat().st_size < 10_000
    read = ReadParquet(schema=COLUMNS) if kind == "parquet" else TEXTS["csv"][1]
    with pytest.raises(AssertionError, match="session was opened"):
        run_ingest(no_spark, request(tmp_path, source, read), RequestControl(), spread=True)
