"""Attestations cover every block once, in order, whatever was run; and evidence names row and column."""

from __future__ import annotations

import datetime as dt
import decimal
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from chain.statements.statement import Actual, EngineUsed
from odfd.store.ledger.runs import RecordedRun
from odfd.trust.evidence.row_diff import RowDifference
from odfd.trust.evidence.row_diff import compare as compare_files
from odfd.trust.judgement.verdicts import VerdictKind, verdict_on
from odfd.trust.validation.attestation_publisher import MAX_SPANS, Reexecuted, Subject, attest, spans_of

ENGINE = EngineUsed(name="spark", digest="sha256:0", pinned=True, sandbox="host", platform="linux/amd64")
NOW = instant.parse("2026-11-20T08:00:00Z")


def run(number: int, verdict: str = "reproduced") -> RecordedRun:
    actual = Actual(records=number)
    return RecordedRun(
        sequence_number=number, block=Multihash.sha3_256(b""), at=NOW, verdict=verdict, engine=ENGINE, actual=actual
    )


def told(size: int, runs: list[RecordedRun], until: int | None = None) -> list[tuple[int, int, str]]:
    tried = Reexecuted({each.sequence_number: each for each in runs}, size if until is None else until)
    return [(span.first, span.last, span.verdict) for span in spans_of(size, tried, [ENGINE])]


def test_spans() -> None:
    assert told(8, [run(3), run(5), run(7)]) == [(0, 7, "reproduced")]
    assert told(9, [run(3), run(5), run(7, "mismatch")]) == [
        (0, 6, "reproduced"),
        (7, 7, "mismatch"),
        (8, 8, "not-attempted"),
    ]
    assert told(4, []) == [(0, 3, "not-attempted")]
    assert told(4, [run(2, "mismatch")]) == [(0, 1, "not-attempted"), (2, 2, "mismatch"), (3, 3, "not-attempted")]


def test_nothing_is_said_of_steps_that_were_not_run() -> None:
    """More of the chain may be here than was re-run: an engine failed, or blocks came while it worked."""
    assert told(9, [run(3), run(5)], until=7) == [(0, 6, "reproduced"), (7, 8, "not-attempted")]
    assert told(9, [], until=2) == [(0, 8, "not-attempted")]
    assert told(9, [run(3), run(7, "mismatch")], until=7) == [
        (0, 6, "reproduced"),
        (7, 7, "mismatch"),
        (8, 8, "not-attempted"),
    ]


verdicts = st.sampled_from(["reproduced", "mismatch", "not-reproducible-here"])


@given(st.integers(1, 400), st.dictionaries(st.integers(0, 399), verdicts))
def test_spans_cover_every_block_once_and_say_what_was_found(size: int, found: dict[int, str]) -> None:
    runs = {number: run(number, verdict) for number, verdict in found.items() if number < size}
    spans = spans_of(size, Reexecuted(runs, size), [ENGINE])
    assert len(spans) <= MAX_SPANS
    assert spans[0].first == 0
    assert spans[-1].last == size - 1
    assert all(one.last + 1 == other.first for one, other in pairwise(spans))
    for number, each in runs.items():
        (span,) = (span for span in spans if span.first <= number <= span.last)
        assert span.verdict in (each.verdict, "not-attempted")


def test_an_attestation_says_what_a_judge_hears() -> None:
    dataset = SigningKey(b"d" * 32).dataset_id
    subject = Subject(dataset=dataset, epoch=0, size=8, root_hash=b"r" * 32, head=Multihash.sha3_256(b"head"))
    runs = {3: run(3), 7: run(7, "mismatch")}
    tried = Reexecuted(runs, subject.size)
    said = attest(SigningKey(b"v" * 32).did, subject, tried, [], "strict", (4, Multihash.sha3_256(b"last")), NOW)
    assert said.serial == 5
    affirmed, denied = verdict_on(said, 3), verdict_on(said, 7)
    assert affirmed is not None
    assert affirmed.kind is VerdictKind.REPRODUCED
    assert denied is not None
    assert denied.kind is VerdictKind.MISMATCH


def table(delays: list[str | None]) -> pa.Table:
    count = len(delays)
    return pa.table(
        {
            "offset": pa.array(range(count), pa.int64()),
            "event_time": pa.array([dt.datetime(2013, 6, 14, tzinfo=dt.UTC)] * count, pa.timestamp("ms", "UTC")),
            "carrier": ["UA", "AA", "B6"][:count],
            "delay": pa.array([None if d is None else decimal.Decimal(d) for d in delays], pa.decimal128(9, 2)),
        }
    )


def compare(published: pa.Table, computed: pa.Table) -> RowDifference:
    """Of two slices as files."""
    with TemporaryDirectory() as folder:
        one, other = Path(folder, "published"), Path(folder, "computed")
        pq.write_table(published, one)
        pq.write_table(computed, other, row_group_size=1)
        return compare_files(one, other)


def test_evidence_names_row_and_column() -> None:
    finding = compare(table(["1.00", "1902.00", None]), table(["1.00", "2902.00", "3.00"]))
    assert finding.message == "delay differs in 2 rows of 3"
    assert [(cell.row, cell.column, cell.published, cell.computed) for cell in finding.cells] == [
        (1, "delay", "1902.00", "2902.00"),
        (2, "delay", None, "3.00"),
    ]
    assert finding.cells[0].context["carrier"] == "AA"
    assert finding.cells[0].context["event_time"] == "2013-06-14T00:00:00Z"
    assert RowDifference.from_bytes(finding.to_bytes()) == finding


def test_evidence_of_dates_that_python_does_not_know() -> None:
    kind = pa.struct([("day", pa.date32())])
    far = pa.table({"day": pa.array([-800_000, 5], pa.int32()).cast(pa.date32())})
    one, other = (pa.table({"x": table.to_struct_array().cast(kind)}) for table in (far, far.slice(0, 1)))
    assert compare(one, one).cells == ()
    changed = pa.table({"x": pa.chunked_array([other["x"].chunk(0), other["x"].chunk(0)])})
    (cell,) = compare(one, changed).cells
    assert (cell.published, cell.computed) == ({"day": "1970-01-06"}, {"day": "-0221-09-04"})


def test_evidence_of_other_shapes() -> None:
    one = table(["1.00", "2.00"])
    assert compare(one, one.slice(0, 1)).message == "2 rows published, 1 computed"
    assert compare(one, one).message == "the rows are equal; offsets, watermark or schema differ"
    assert "columns" in compare(one, one.drop_columns(["delay"])).message
    nested = pa.table({"x": [[1, 2], [3]]})
    assert compare(nested, pa.table({"x": [[1, 2], [4]]})).cells[0].published == [3]
