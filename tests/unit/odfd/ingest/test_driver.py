"""Pulls and pushes: one transaction per file, exactly once, whoever else writes and whatever breaks."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from chain import instant
from chain.errors import Conflict, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.model.events import AddData, AddPushSource, DatasetKind, Seed, SetDataSchema, SetInfo, SetPollingSource
from chain.model.source import (
    CompressionFormat,
    Decompress,
    FetchFilesGlob,
    MergeAppend,
    MergeSnapshot,
    MergeStrategy,
    ReadCsv,
)
from chain.state import load_state
from engines.contract import (
    STARTING,
    EngineInternalError,
    EngineProgress,
    IngestAnswer,
    IngestBatchRequest,
    InvalidQuery,
    OnProgress,
    Success,
    ignore_progress,
)
from engines.errors import EngineFault
from odfd.ingest.driver import Ingested, NothingNew, pull_root
from odfd.ingest.push import PushTerms, push_files
from worlds.fake_engine import FakeEngine

DATASET = DatasetId.from_public_key(bytes(32))
READ = ReadCsv(header=True, ddl_schema=("event_time TIMESTAMP, city STRING, population BIGINT",))
JANUARY = ["2020-01-01T00:00:00Z,A,1", "2020-01-02T00:00:00Z,B,2"]
FEBRUARY = ["2020-02-01T00:00:00Z,A,3"]


async def test_a_fault_of_the_engine_keeps_its_rule_hint_and_place(polling: Callable[..., Any]) -> None:
    """All of them were of the rule ``ingest``, with nothing to do next."""

    class Strict(FakeEngine):
        async def ingest(self, *_: Any) -> InvalidQuery:
            return InvalidQuery(message="3 columns", rule="read-columns", hint="mend it", place="01.csv:7")

    bench = polling()
    bench.engine = Strict()
    bench.write("01.csv", *JANUARY)
    with pytest.raises(Invalid, match=r"01\.csv:7: 3 columns") as told:
        await pull_root(bench.deps, DATASET)
    assert (told.value.rule, told.value.hint, told.value.place) == ("read-columns", "mend it", "01.csv:7")


@pytest.mark.parametrize(
    ("merge", "schema", "is_told"),
    [
        (MergeAppend(), ("event_time TIMESTAMP, city STRING, population BIGINT",), True),
        (MergeAppend(), None, False),
        (MergeSnapshot(primary_key=("city",)), ("event_time TIMESTAMP, city STRING, population BIGINT",), False),
    ],
)
async def test_a_record_that_cannot_be_read_can_be_set_aside(
    bench: Any, merge: MergeStrategy, schema: tuple[str, ...] | None, is_told: bool
) -> None:
    """Nobody can correct a message that is in a queue; where it is possible, it is said."""

    class Strict(FakeEngine):
        async def ingest(self, *_: Any) -> InvalidQuery:
            return InvalidQuery(message="no JSON", rule="read-json", hint="mend it", place="queue:1")

    bench.engine = Strict()
    folder = bench.write("01.csv", *JANUARY).parent
    read = ReadCsv(header=True, ddl_schema=schema)
    source = SetPollingSource(fetch=FetchFilesGlob(path=str(folder / "*.csv")), read=read, merge=merge)
    bench.append(None, [Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT), source])
    with pytest.raises(Invalid) as told:
        await pull_root(bench.deps, DATASET)
    assert ("onError: quarantine" in told.value.hint) is is_told


async def test_a_fault_in_a_file_of_an_archive_says_which_file(bench: Any) -> None:
    class Strict(FakeEngine):
        async def ingest(self, *_: Any) -> InvalidQuery:
            return InvalidQuery(message="1 column", rule="read-columns", hint="mend it", place="all.zip:1")

    bench.engine = Strict()
    folder = bench.write("all.zip").parent
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        for name in ("README", "data.csv"):
            archive.writestr(name, name)
    source = SetPollingSource(
        fetch=FetchFilesGlob(path=str(folder / "*.zip")),
        prepare=(Decompress(format=CompressionFormat.ZIP),),
        read=READ,
        merge=MergeAppend(),
    )
    bench.append(None, [Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT), source])
    with pytest.raises(Invalid) as told:
        await pull_root(bench.deps, DATASET)
    assert told.value.hint == "mend it; all.zip holds 2 files: README was read, and not data.csv (subPath chooses)"


async def test_every_file_is_a_transaction(polling: Callable[..., Any]) -> None:
    bench = polling()
    bench.write("01.csv", *JANUARY)
    bench.write("02.csv", *FEBRUARY)
    steps: list[tuple[str, str, int]] = []
    outcome = await pull_root(bench.deps, DATASET, report=lambda step: steps.append((step.file, step.phase, step.rows)))
    assert isinstance(outcome, Ingested)
    assert (outcome.blocks, outcome.rows, outcome.files) == (3, 3, 2)
    _, _, schema, first, second = bench.events()
    assert isinstance(schema, SetDataSchema)
    assert isinstance(first, AddData)
    assert isinstance(second, AddData)
    assert first.new_source_state.value == "01.csv"
    assert second.new_source_state.value == "02.csv"
    assert (first.prev_offset, second.prev_offset) == (None, 1)
    assert second.new_data.offset_interval.start == 2
    assert second.new_data.size == bench.objects.size(second.new_data.physical_hash)
    assert steps == [
        ("01.csv", "fetched", 0),
        ("01.csv", "computing", 0),
        ("01.csv", "committed", 2),
        ("02.csv", "fetched", 2),
        ("02.csv", "computing", 2),
        ("02.csv", "committed", 3),
    ]
    assert bench.leftovers() == []
    assert await pull_root(bench.deps, DATASET) == NothingNew(reason="unchanged")


async def test_what_the_engine_has_read_is_reported_until_it_computes(polling: Callable[..., Any]) -> None:
    class Reading(FakeEngine):
        async def ingest(self, request: IngestBatchRequest, on_progress: OnProgress = ignore_progress) -> IngestAnswer:
            on_progress(EngineProgress(stage=STARTING, bytes_read=0, bytes_total=40))
            for read in (0, 16, 16, 40):
                on_progress(EngineProgress(bytes_read=read, bytes_total=40))
            return await super().ingest(request, on_progress)

    bench = polling()
    bench.engine = Reading()
    bench.write("01.csv", *JANUARY)
    steps: list[tuple[str, int | None, int | None]] = []
    await pull_root(
        bench.deps, DATASET, report=lambda step: steps.append((step.phase, step.bytes_done, step.bytes_total))
    )
    assert steps == [
        ("fetched", None, None),
        ("computing", None, None),
        ("starting the engine for", None, None),
        ("reading", 0, 40),
        ("reading", 16, 40),
        ("reading", 40, 40),
        ("computing", None, None),
        ("committed", None, None),
    ]


async def test_known_rows_move_the_source_state_only(polling: Callable[..., Any]) -> None:
    bench = polling()
    bench.write("01.csv", *JANUARY)
    await pull_root(bench.deps, DATASET)
    bench.write("02.csv", *JANUARY)
    outcome = await pull_root(bench.deps, DATASET)
    assert isinstance(outcome, Ingested)
    assert (outcome.blocks, outcome.rows) == (1, 0)
    last = bench.events()[-1]
    assert last.new_data is None
    assert last.new_watermark == bench.events()[-2].new_watermark
    assert last.new_source_state.value == "02.csv"


async def test_a_lost_race_plans_again_on_the_new_head(polling: Callable[..., Any]) -> None:
    bench = polling()
    bench.write("01.csv", *JANUARY)
    others = [SetInfo(description="one"), SetInfo(description="two")]

    def interfere() -> None:
        if others:
            head = bench.chains.chain(DATASET).head()
            bench.append(head, [others.pop(0)], system_time=bench.tick())

    bench.before_commit = interfere
    outcome = await pull_root(bench.deps, DATASET)
    assert isinstance(outcome, Ingested)
    assert outcome.blocks == 2
    assert bench.commits == 3
    assert sum(isinstance(event, AddData) for event in bench.events()) == 1
    assert bench.leftovers() == []


async def test_a_race_lost_for_ever_is_a_conflict(polling: Callable[..., Any]) -> None:
    bench = polling()
    bench.write("01.csv", *JANUARY)
    count = iter(range(100))

    def interfere() -> None:
        head = bench.chains.chain(DATASET).head()
        bench.append(head, [SetInfo(description=str(next(count)))], system_time=bench.tick())

    bench.before_commit = interfere
    with pytest.raises(Conflict):
        await pull_root(bench.deps, DATASET)
    assert bench.leftovers() == []


async def test_bad_data_stops_at_its_file_and_keeps_what_was_committed(polling: Callable[..., Any]) -> None:
    bench = polling()
    bench.write("01.csv", *JANUARY)
    bench.write("02.csv", "yesterday,A,1")
    with pytest.raises(Invalid):
        await pull_root(bench.deps, DATASET)
    assert load_state(bench.chains.chain(DATASET)).source_state.value == "01.csv"
    assert bench.leftovers() == []
    bench.write("02.csv", *FEBRUARY)
    outcome = await pull_root(bench.deps, DATASET)
    assert isinstance(outcome, Ingested)
    assert outcome.rows == 1


class Liar(FakeEngine):
    """An engine whose answers are changed on their way."""

    def __init__(self, change: Callable[[Success], Any]) -> None:
        super().__init__()
        self.change = change

    async def ingest(self, request: Any, on_progress: Any = lambda: None) -> Any:
        return self.change(await super().ingest(request, on_progress))


def moved(answer: Success) -> Success:
    interval = msgspec.structs.replace(answer.new_offset_interval, end=answer.new_offset_interval.end + 1)
    return msgspec.structs.replace(answer, new_offset_interval=interval)


@pytest.mark.parametrize(
    "change,fault,said",
    [
        (moved, Invalid, "the engine wrote offsets 0..1"),
        (lambda answer: msgspec.structs.replace(answer, new_offset_interval=None), Invalid, "what became of 2 of them"),
        (lambda answer: msgspec.structs.replace(answer, schema=None), Invalid, "schema"),
        (lambda _: EngineInternalError(message="out of luck"), EngineFault, "out of luck"),
    ],
)
async def test_an_engine_is_not_believed(
    change: Callable[[Success], Any], fault: type[Exception], said: str, polling: Callable[..., Any]
) -> None:
    bench = polling()
    bench.engine = Liar(change)
    bench.write("01.csv", *JANUARY)
    before = bench.events()
    with pytest.raises(fault, match=said):
        await pull_root(bench.deps, DATASET)
    assert bench.events() == before
    assert bench.leftovers() == []


async def test_nothing_to_fetch(polling: Callable[..., Any]) -> None:
    with pytest.raises(NotFound, match="no file matches"):
        await pull_root(polling().deps, DATASET)


async def test_only_roots_with_a_source_are_pulled(bench: Any) -> None:
    bench.append(None, [Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT)])
    with pytest.raises(Refused, match="no polling source"):
        await pull_root(bench.deps, DATASET)


async def test_the_first_push_makes_its_source(bench: Any) -> None:
    bench.append(None, [Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT)])
    files = [bench.write("a.csv", *JANUARY), bench.write("b.csv", *FEBRUARY)]
    with pytest.raises(Invalid, match="no push source yet"):
        await push_files(bench.deps, DATASET, files)
    outcome = await push_files(bench.deps, DATASET, files, PushTerms(read=READ))
    assert isinstance(outcome, Ingested)
    assert (outcome.rows, outcome.blocks) == (3, 3)
    _, source, schema, data = bench.events()
    assert source == AddPushSource(source_name="auto", read=READ, merge=MergeAppend())
    assert isinstance(schema, SetDataSchema)
    assert data.new_source_state is None
    again = await push_files(bench.deps, DATASET, files[1:])
    assert isinstance(again, Ingested)
    assert (again.rows, again.blocks) == (1, 1)
    with pytest.raises(Invalid, match="no push source 'other'"):
        await push_files(bench.deps, DATASET, files, PushTerms(source="other"))


async def test_a_polled_dataset_is_not_pushed_to(polling: Callable[..., Any]) -> None:
    bench = polling()
    with pytest.raises(Refused, match="the dataset polls its source"):
        await push_files(bench.deps, DATASET, [bench.write("a.csv", *JANUARY)])


async def test_block_times_are_whole_milliseconds_and_never_go_back(polling: Callable[..., Any]) -> None:
    bench = polling()
    bench.write("01.csv", *JANUARY)
    start = bench.clock
    bench.clock += 1_234_567 - instant.SECOND
    await pull_root(bench.deps, DATASET)
    state = load_state(bench.chains.chain(DATASET))
    assert state.system_time % 1_000_000 == 0
    times = [bench.chains.chain(DATASET).block_at(number).system_time for number in range(state.size)]
    assert times == sorted(times)
    assert times[-1] >= start


async def test_a_clock_days_behind_the_last_block_takes_nothing_in(polling: Callable[..., Any]) -> None:
    bench = polling()
    bench.write("01.csv", *JANUARY)
    bench.clock -= 3 * 86400 * instant.SECOND
    before = bench.events()
    with pytest.raises(Refused, match="the clock of this machine says 2023-12-29"):
        await pull_root(bench.deps, DATASET)
    assert bench.events() == before
    bench.clock += 3 * 86400 * instant.SECOND
    assert isinstance(await pull_root(bench.deps, DATASET), Ingested)
