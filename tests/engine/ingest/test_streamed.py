"""Rows that are written as they come make the slice, and the answer, that they make when all are held at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from chain.model.source import MergeAppend, MergeLedger, MergeStrategy, ReadCsv, Transform
from engines.contract import InvalidQuery, Success
from engines.spark.ingest import parse, run, streamed
from engines.spark.ingest.ranges import line_ranges

pytestmark = pytest.mark.engine
APPEND = MergeAppend()
READ = ReadCsv(header=True, ddl_schema=("event_time TIMESTAMP", "id BIGINT NOT NULL", "name STRING"))
SORTED = "".join(f"2024-01-01T00:{n // 60:02}:{n % 60:02}Z,{n},name {n % 7}\n" for n in range(300))


@pytest.fixture
def both(dataset: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Ingests both ways, in parts of a few hundred bytes: the dataset, both answers, whether rows were streamed."""
    monkeypatch.setattr(parse, "line_ranges", lambda view, start: line_ranges(view, start, 700))
    told: list[bool] = [False]

    def watched(*given: Any, **named: Any) -> Any:
        found = streamed.stream_slice(*given, **named)
        told.append(found is not None)
        return found

    monkeypatch.setattr(run, "stream_slice", watched)
    monkeypatch.setattr(streamed, "WINDOW", 50)

    def ingest(
        text: str, *, read: ReadCsv = READ, after: str = "", merge: MergeStrategy = APPEND, **more: Any
    ) -> tuple[Any, list[Any], bool]:
        made = dataset(merge)
        if after:
            assert isinstance(made.ingest(after, read), Success)
        answers, slices = [], []
        told[:] = [False]
        for least in (1, 1 << 30):
            monkeypatch.setattr(streamed, "LEAST", least)
            answer = made.ingest(text, read, remember=False, **more)
            if isinstance(answer, InvalidQuery):
                answer = msgspec.structs.replace(answer, place=(answer.place or "").replace(f"-{made.rounds}.", "."))
            answers.append(answer)
            output = made.folder / f"slice-{made.rounds}"
            slices.append(output.read_bytes() if output.exists() else None)
        assert answers[0] == answers[1]
        assert slices[0] == slices[1]
        return made, answers, told[-1]

    return ingest


HEADER = "event_time,id,name\n"


def test_sorted_rows_are_written_as_they_come(both: Callable[..., Any]) -> None:
    _, (answer, _), was = both(HEADER + SORTED)
    assert was
    assert answer.new_offset_interval.end == 299
    assert was is both(HEADER + SORTED, after=HEADER + "2024-01-01T00:02:00Z,1,x\n")[2], "late rows are counted"


@pytest.mark.parametrize(
    ("rows", "untimed"),
    [
        (SORTED + "2023-01-01T00:00:00Z,1,late\n", 0),
        (SORTED + SORTED, 0),
        ("".join(reversed(SORTED.splitlines(keepends=True))), 0),
        (",1,no time\n" + SORTED + ",2,no time\n", 2),
    ],
    ids=["one behind", "twice", "backwards", "untimed"],
)
def test_unsorted_rows_are_sorted_on_disk(both: Callable[..., Any], rows: str, untimed: int) -> None:
    _, (answer, _), was = both(HEADER + rows, source_time="2024-01-01T00:03:00Z")
    assert isinstance(answer, Success)
    assert answer.rows.untimed == untimed
    assert was


def test_rows_of_a_file_without_event_times_are_written_as_they_come(both: Callable[..., Any]) -> None:
    rows = "id,name\n" + "".join(line.partition(",")[2] for line in SORTED.splitlines(keepends=True))
    declared = ReadCsv(header=True, ddl_schema=("id BIGINT NOT NULL", "name STRING"))
    for read in (declared, ReadCsv(header=True), ReadCsv(header=True, infer_schema=True)):
        _, (answer, _), was = both(rows, read=read, after=rows)
        assert (answer.rows.untimed, answer.rows.late) == (300, 0)
        assert was


def test_guessed_columns_are_written_as_they_come(both: Callable[..., Any]) -> None:
    rows = HEADER.replace("name", "offset") + SORTED
    _, (answer, _), was = both(rows, read=ReadCsv(header=True, infer_schema=True))
    assert isinstance(answer, Success)
    assert was


def test_columns_may_be_called_as_members_of_others(both: Callable[..., Any]) -> None:
    dotted = ReadCsv(header=True, infer_schema=True)
    rows = "event_time,id,id.event_time\n" + SORTED
    assert both(rows, read=dotted, merge=MergeLedger(primary_key=("id",)))[2]
    assert both(rows.replace("id.event_time", "event_time.id"), read=dotted)[2]


def test_a_text_that_is_no_time_is_told_as_of_all_rows(both: Callable[..., Any]) -> None:
    _, (answer, _), was = both(HEADER + SORTED + "once,1,x\n", read=ReadCsv(header=True))
    assert isinstance(answer, InvalidQuery)
    assert not was


STREAMED = {
    "filter": "select event_time, id * 2 as double, name from input where id % 3 > 0",
    "no time": "select id, name from input",
    "backwards": "select timestamp_millis(1700000000000 - id * 1000) as event_time, id from input",
    "one without time": "select if(id = 299, null, event_time) as event_time, id from input",
}
HELD = {
    "group": "select event_time, max(id) as id from input group by event_time",
    "with": "with low as (select event_time, id from input) select * from low where id > 9",
    "union": "select event_time, id from input union all select event_time, -id from input",
    "count of all": "select event_time, id, (select count(*) from input) as rows from input",
    "id of another row": "select event_time, id from input where id in (select id * 2 from input)",
    "two of a name": "select event_time, id, id from input",
    "nothing left": "select event_time, id from input where id > 1000",
    "fault": "select event_time, 1 div (id - 200) as one from input",
}


@pytest.mark.parametrize("name", [*STREAMED, *HELD])
def test_rows_of_a_query_are_written_as_they_come(both: Callable[..., Any], name: str) -> None:
    query = f"SET odf.ahead = 'any'; {(STREAMED | HELD)[name]}"
    _, _, was = both(HEADER + SORTED, preprocess=Transform(engine="spark", query=query))
    assert was == (name in STREAMED)


@pytest.mark.parametrize(
    ("keys", "before", "is_streamed"),
    [
        (("id",), "", True),
        (("id", "name"), "2024-01-01T00:00:00Z,-1,name 1\n", True),
        (("name",), "2024-01-01T00:00:00Z,400,name 10\n", False),
        (("id",), "2024-01-01T00:00:07Z,7,name 0\n", False),
        (("event_time", "id"), "2023-01-01T00:00:00Z,5000,name 0\n", True),
        (("event_time",), "2024-01-01T00:00:07.5Z,7,name 0\n", False),
        (("nothing",), "", False),
    ],
)
def test_rows_of_a_ledger_without_keys_in_their_range_are_written_as_they_come(
    both: Callable[..., Any], keys: tuple[str, ...], before: str, is_streamed: bool
) -> None:
    late = "2023-06-01T00:00:00Z,1000,late\n,1001,no time\n"
    _, (answer, _), was = both(
        HEADER + SORTED + late, after=before and HEADER + before, merge=MergeLedger(primary_key=keys)
    )
    assert was == is_streamed
    assert isinstance(answer, Success) == (keys != ("nothing",))


def test_rows_of_a_ledger_without_a_key_are_told_as_of_all_rows(both: Callable[..., Any]) -> None:
    _, (answer, _), was = both(HEADER + SORTED + "2024-01-01T01:00:00Z,3,\n", merge=MergeLedger(primary_key=("name",)))
    assert isinstance(answer, InvalidQuery)
    assert not was


def test_a_query_that_gives_no_time_is_told_as_of_all_rows(both: Callable[..., Any]) -> None:
    lacking = Transform(engine="spark", query="select if(id = 299, null, event_time) as event_time, id from input")
    _, (answer, _), was = both(HEADER + SORTED, preprocess=lacking, fills=False)
    assert isinstance(answer, InvalidQuery)
    assert not was


def test_what_is_wrong_is_told_as_of_all_rows(both: Callable[..., Any]) -> None:
    far = HEADER + SORTED + "2999-01-01T00:00:00Z,1,far\n"
    _, (answer, _), was = both(far, bounded=True, system_time="2024-01-02T00:00:00Z")
    assert isinstance(answer, InvalidQuery)
    assert not was
