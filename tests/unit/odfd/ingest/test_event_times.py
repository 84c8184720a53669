"""Who says which time rows have that bring none: only a person, or the manifest; and what the chain tells of others."""

from __future__ import annotations

from typing import Any

import pytest

from chain import instant
from chain.ids import DatasetId
from chain.model.events import AddData, DatasetKind, Seed, SetPollingSource
from chain.model.source import (
    EventTimeSource,
    FetchFilesGlob,
    FromPath,
    FromSystemTime,
    MergeAppend,
    ReadCsv,
)
from odfd.ingest.driver import pull_root
from odfd.ingest.push import PushTerms, push_files
from worlds.fake_engine import FakeEngine

DATASET = DatasetId.from_public_key(bytes(32))
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
