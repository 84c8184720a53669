"""Files are parsed in threads of the engine: how far they are is told, and their memory is bounded."""

from __future__ import annotations

import contextlib
import functools
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.parsing import STEPS, peak_apart
from chain.data.footprint import BATCH_BYTES
from chain.errors import Invalid
from chain.model.source import ReadCsv, ReadNdJson, ReadParquet
from engines.contract import EngineProgress
from engines.request_control import RequestCancelled, RequestControl
from engines.spark.ingest import parquet_rows, parse, range_tasks
from engines.spark.ingest.parquet_rows import groups_of, parquet_ranges
from engines.spark.ingest.parse import SourceFile, parse_sources
from engines.spark.ingest.ranges import Range, line_ranges

READ = ReadCsv(header=True, ddl_schema=("id BIGINT NOT NULL", "name STRING"))
ROWS = 400


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SourceFile:
    """A file of many ranges."""
    monkeypatch.setattr(parse, "line_ranges", lambda view, start: line_ranges(view, start, 64))
    path = tmp_path / "source.csv"
    path.write_text("id,name\n" + "".join(f"{n},name {n}\n" for n in range(ROWS)))
    return SourceFile(path, path.name)


def no_session() -> Any:
    raise AssertionError("a Spark session was opened")


@pytest.mark.slow
def test_no_more_ranges_are_held_than_there_are_threads(
    source: SourceFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parse.os, "cpu_count", lambda: 3)
    lock, held, most, real = threading.Lock(), 0, 0, range_tasks._answer

    def counted(task: range_tasks.RangeTask) -> dict[str, object]:
        nonlocal held, most
        with lock:
            held += 1
            most = max(most, held)
        try:
            return real(task)
        finally:
            with lock:
                held -= 1

    monkeypatch.setattr(range_tasks, "_answer", counted)
    parts = parse_sources(no_session, [source], READ, tmp_path)
    assert parts is not None
    assert len(parts.tasks) > 50
    assert most <= 3
    assert [value for path in parts.paths for value in pq.read_table(path)["id"].to_pylist()] == list(range(ROWS))


@pytest.mark.slow
def test_the_first_fault_of_the_file_is_told(source: SourceFile, tmp_path: Path) -> None:
    text = source.path.read_text().replace("\n300,", "\nx,").replace("\n200,", "\ny,")
    source.path.write_text(text)
    with pytest.raises(Invalid) as caught:
        parse_sources(no_session, [source], READ, tmp_path)
    assert caught.value.place == "source.csv:202"


def test_a_cancelled_request_parses_no_further_range(
    source: SourceFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control, done, real = RequestControl(), [0], range_tasks._answer

    def cancelling(task: range_tasks.RangeTask) -> dict[str, object]:
        done[0] += 1
        control.cancel()
        return real(task)

    monkeypatch.setattr(parse.os, "cpu_count", lambda: 1)
    monkeypatch.setattr(range_tasks, "_answer", cancelling)
    with pytest.raises(RequestCancelled):
        parse_sources(no_session, [source], READ, tmp_path, {}, control)
    assert done == [1]


def test_a_long_range_is_left_to_a_worker(source: SourceFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "MAX_HERE", 32)
    monkeypatch.setattr(parse, "SMALL", 32)
    with pytest.raises(AssertionError, match="session was opened"):
        parse_sources(no_session, [source], READ, tmp_path)


TABLES = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.text(max_size=40),
        st.none() | st.booleans(),
        st.none() | st.lists(st.integers(0, 9), max_size=9),
    ),
    max_size=40,
)
COLUMNS = pa.schema({"id": pa.int64(), "name": pa.string(), "ok": pa.bool_(), "days": pa.list_(pa.int64())})


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(TABLES, st.integers(1, 50), st.booleans(), st.sampled_from(["zstd", "none"]), st.integers(1, 1 << 16))
def test_parquet_is_cut_between_row_groups_and_has_the_rows_of_a_worker(
    rows: list[tuple[Any, ...]], times: int, dictionary: bool, compression: str, target: int
) -> None:
    once = pa.table(list(zip(*rows, strict=True)) or [[]] * 4, schema=COLUMNS)
    table = pa.concat_tables([once] * times).combine_chunks()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.parquet")
        pq.write_table(table, path, use_dictionary=dictionary, compression=compression, row_group_size=100)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parse, "parquet_ranges", functools.partial(parquet_ranges, target=target))
            parts = parse_sources(no_session, [SourceFile(path, path.name)], ReadParquet(), Path(folder))
            assert parts is not None
            here = [pq.read_table(each) for each in parts.paths]
            numbers = pa.record_batch({"task": list(range(len(parts.tasks)))})
            answers = pa.Table.from_batches(range_tasks.perform(iter([numbers]), parts.tasks))
        assert answers.column("rows").to_pylist() == list(parts.rows) == [part.num_rows for part in here]
        assert [pq.read_table(each) for each in parts.paths] == here
        assert pa.concat_tables(here).cast(COLUMNS).to_pylist() == table.to_pylist()


def test_a_value_at_fault_is_told_with_its_row_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": [*range(250), None, 1]}), path, row_group_size=100)
    monkeypatch.setattr(parse, "parquet_ranges", functools.partial(parquet_ranges, target=1))
    with pytest.raises(Invalid) as told:
        parse_sources(
            no_session, [SourceFile(path, path.name)], ReadParquet(ddl_schema=("id BIGINT NOT NULL",)), tmp_path
        )
    assert told.value.place == "rows.parquet: row 251"


def test_groups_that_do_not_follow_one_another_are_one_range(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": range(300)}), path, row_group_size=100)
    footer, size = parquet_rows.footer(path, "rows"), path.stat().st_size
    assert len(parquet_ranges(footer, size, 1)) == 3
    for wrong in (footer.groups[2].chunks[0].dictionary_page, 0):
        assert parquet_ranges(footer, wrong, 1) == [Range(0, wrong)]
        assert groups_of(footer, Range(0, wrong), wrong) == range(3)


def test_of_long_texts_that_are_written_once_few_are_held_at_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    texts = pa.repeat("x" * 4096, 60_000)
    members = pa.StructArray.from_arrays([texts], ["in"])
    pq.write_table(pa.table({"name": texts, "member": members}), path)
    assert path.stat().st_size < parse.SMALL // 8
    for columns in ({"name": pa.string()}, {"member": members.type}):
        found = list(parquet_rows.batches(path, "rows", Range(0, path.stat().st_size), pa.schema(columns)))
        assert max(each.table.nbytes for each in found) <= 2 * BATCH_BYTES
        assert sum(each.table.num_rows for each in found) == 60_000
    assert parse_sources(no_session, [SourceFile(path, path.name)], ReadParquet(), tmp_path) is not None


@pytest.mark.parametrize("seed", range(20))
def test_damaged_parquet_is_told(tmp_path: Path, seed: int) -> None:
    """Attack T-BYTES-02: a damaged or hostile Parquet file as a source.

    Defence: its footer is read by a strict reader of our own, since pyarrow's ends the process for some; a file whose
    rows need more memory than a slice may take is refused.

    pyarrow's reading of a footer ends the process for some of them.
    """
    rng = Random(seed)
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": range(300), "name": ["x", "y", None] * 100}), path, row_group_size=100)
    raw = path.read_bytes()
    for _ in range(20):
        damaged = bytearray(raw)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(raw))] = rng.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(Invalid):
            parse_sources(no_session, [SourceFile(path, path.name)], ReadParquet(), tmp_path)


def test_on_a_cluster_machines_share_what_is_not_small(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": range(200_000)}), path)
    assert parse_sources(no_session, [SourceFile(path, path.name)], ReadParquet(), tmp_path) is not None
    with pytest.raises(AssertionError, match="session was opened"):
        parse_sources(no_session, [SourceFile(path, path.name)], ReadParquet(), tmp_path, spread=True)


# How far the parsing of files is.


class Looking(RequestControl):
    """Looks how far the work is before it begins and when it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[EngineProgress] = []

    @contextmanager
    def measuring(self, measure: Callable[[], EngineProgress]) -> Iterator[None]:
        with super().measuring(measure):
            self.seen.append(self.how_far())
            yield
            self.seen.append(self.how_far())


def test_bytes_of_ranges_that_are_parsed_count(tmp_path: Path) -> None:
    sources = []
    for number in range(3):
        path = tmp_path / f"{number}.ndjson"
        path.write_text('{"a": 1}\n' * 10)
        sources.append(SourceFile(path, path.name))
    control = Looking()
    folder = tmp_path / "parts"
    folder.mkdir()

    def no_session() -> None:
        raise AssertionError("small texts need no Spark")

    assert parse_sources(no_session, sources, ReadNdJson(), folder, {}, control) is not None  # type: ignore[arg-type]
    assert control.seen == [
        EngineProgress(bytes_read=0, bytes_total=270),
        EngineProgress(bytes_read=270, bytes_total=270),
    ]
    assert control.how_far() == EngineProgress()


# What reading a file takes of memory is bounded by its size, whichever format it has.

RANGE = 16 << 20
"""One range of a text, of which a process has nothing left, and as much of what is read in one piece."""
MOST = 6.0
SIZES = {"csv": 2 * RANGE, "ndjson": 2 * RANGE, "json": RANGE, "parquet": RANGE}
"""What is read in ranges has two: the second one finds what the first one left."""
OTHERS = [("csv", RANGE), ("ndjson", RANGE), ("geojson", RANGE), ("ndgeojson", RANGE), ("ndgeojson", 2 * RANGE)]
"""The same readers, with one step more or less."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "size"), [*SIZES.items(), *(pytest.param(*each, marks=pytest.mark.nightly) for each in OTHERS)]
)
def test_a_file_takes_six_times_its_size_at_most(kind: str, size: int, tmp_path: Path) -> None:
    assert peak_apart(kind, size, tmp_path) < MOST


def test_every_format_is_measured() -> None:
    assert SIZES.keys() | {kind for kind, _ in OTHERS} == STEPS.keys()
