"""Every row that is read is accounted for, whether or not anything is committed for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.model.events import AddPushSource, DatasetKind, Seed
from chain.model.source import MergeAppend, MergeLedger, ReadCsv
from engines.contract import RowCounts, SkippedFile, Success
from odfd.ingest import trigger
from odfd.ingest.driver import Ingested, NothingNew, pull_root
from odfd.ingest.fetch.source import Unchanged
from odfd.ingest.push import PushTerms, push_files
from worlds.fake_engine import FakeEngine

DATASET = DatasetId.from_public_key(bytes(32))
READ = ReadCsv(header=True, ddl_schema=("event_time TIMESTAMP, city STRING, population BIGINT",))
JANUARY = ["2020-01-01T00:00:00Z,A,1", "2020-01-02T00:00:00Z,B,2"]


def numbers(counts: RowCounts) -> dict[str, int]:
    """Those that are not zero."""
    fields = (name for name in RowCounts.__struct_fields__ if name not in ("skipped", "remarks"))
    return {name: getattr(counts, name) for name in fields if getattr(counts, name) != 0}


async def test_a_transaction_says_what_became_of_each_row(polling: Callable[..., Any]) -> None:
    bench = polling()
    bench.write("01.csv", *JANUARY)
    first = await pull_root(bench.deps, DATASET)
    assert isinstance(first, Ingested)
    assert numbers(first.counts) == {"read": 2, "shaped": 2, "appended": 2}
    bench.write("02.csv", JANUARY[0], "2020-01-02T00:00:00Z,B,99", "2019-01-01T00:00:00Z,C,3")
    bench.write("03.csv", JANUARY[1])
    second = await pull_root(bench.deps, DATASET)
    assert isinstance(second, Ingested)
    expected = {"read": 4, "shaped": 4, "appended": 1, "unchanged": 2, "conflicting": 1, "late": 1}
    assert numbers(second.counts) == expected
    assert [each.read for each in bench.counts] == [2, 3, 1]


async def test_rows_for_which_nothing_is_committed_are_counted_too(bench: Any) -> None:
    bench.append(None, [Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT)])
    file = bench.write("a.csv")
    done = await push_files(bench.deps, DATASET, [file], PushTerms(read=READ))
    assert isinstance(done, Ingested)
    before = len(bench.events())
    again = await push_files(bench.deps, DATASET, [file])
    assert isinstance(again, NothingNew)
    assert numbers(again.counts) == {}
    assert len(bench.counts) == 1, "no row was read, and that is not kept"
    assert len(bench.events()) == before


async def test_a_push_of_which_nothing_is_new_is_counted(bench: Any) -> None:
    """It appends no block that would say so."""
    source = AddPushSource(source_name="gate", read=READ, merge=MergeLedger(primary_key=("event_time", "city")))
    bench.append(None, [Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT), source])
    for name in ("a.csv", "b.csv"):
        await push_files(bench.deps, DATASET, [bench.write(name, *JANUARY)])
    assert list(map(numbers, bench.counts)) == [
        {"read": 2, "shaped": 2, "appended": 2},
        {"read": 2, "shaped": 2, "unchanged": 2},
    ]


async def test_files_that_are_passed_over_are_told_though_nothing_is_new(
    polling: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = polling(MergeAppend())
    skipped = (SkippedFile(name="00.csv", reason="it sorts before 01.csv, which was taken"),)

    async def fetch(*_: object) -> Unchanged:
        return Unchanged(skipped)

    monkeypatch.setattr(trigger, "fetch", fetch)
    outcome = await pull_root(bench.deps, DATASET)
    assert isinstance(outcome, NothingNew)
    assert outcome.counts.skipped == skipped
    assert [each.skipped for each in bench.counts] == [skipped]


class Forgetful(FakeEngine):
    """An engine that says nothing of rows, as those of others."""

    async def ingest(self, request: Any, on_progress: Any = lambda: None) -> Any:
        answer = await super().ingest(request, on_progress)
        return Success(
            new_offset_interval=answer.new_offset_interval, new_watermark=answer.new_watermark, schema=answer.schema
        )


async def test_what_an_engine_does_not_say_is_not_known_and_what_it_wrote_is(polling: Callable[..., Any]) -> None:
    bench = polling()
    bench.engine = Forgetful()
    bench.write("01.csv", *JANUARY)
    outcome = await pull_root(bench.deps, DATASET)
    assert (outcome.counts.read, outcome.counts.unchanged) == (None, None)
    assert (outcome.counts.appended, outcome.counts.corrected, outcome.counts.retracted) == (2, 0, 0)


@pytest.mark.parametrize("told", [{"read": 3, "shaped": 3}, {"read": 3}, {"quarantined": 1}])
async def test_an_engine_that_loses_a_row_is_refused(polling: Callable[..., Any], told: dict[str, int]) -> None:
    """Rows are written or accounted for, and those that were read are rows or set aside."""

    class Lossy(FakeEngine):
        async def ingest(self, request: Any, on_progress: Any = lambda: None) -> Any:
            answer = await super().ingest(request, on_progress)
            assert isinstance(answer, Success)
            assert answer.rows is not None
            counts = {name: getattr(answer.rows, name) for name in RowCounts.__struct_fields__}
            rows = RowCounts(**{**counts, **told})
            return Success(
                new_offset_interval=answer.new_offset_interval, new_watermark=answer.new_watermark,
                schema=answer.schema, rows=rows,
            )  # fmt: skip

    bench = polling()
    bench.engine = Lossy()
    bench.write("01.csv", *JANUARY)
    with pytest.raises(Invalid, match=r"what became of 1 of them|that the engine read"):
        await pull_root(bench.deps, DATASET)
