"""Pulls and pushes: one transaction per file, exactly once, and every row accounted for."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chain import instant
from chain.data.parquet import open_slice
from chain.errors import Conflict, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import (
    AddData,
    AddPushSource,
    DatasetKind,
    DisablePollingSource,
    Seed,
    SetDataSchema,
    SetInfo,
    SetPollingSource,
)
from chain.model.source import (
    CompressionFormat,
    Decompress,
    FetchFilesGlob,
    FetchStep,
    FetchUrl,
    FromPath,
    MergeAppend,
    MergeLedger,
    MergeSnapshot,
    MergeStrategy,
    ReadCsv,
    ReadNdJson,
)
from chain.state import ChainState, load_state
from engines.contract import (
    STARTING,
    EngineInternalError,
    EngineProgress,
    IngestAnswer,
    IngestBatchRequest,
    InvalidQuery,
    OnProgress,
    RowCounts,
    SkippedFile,
    Success,
    ignore_progress,
)
from engines.errors import EngineFault
from odfd.ingest import driver, trigger
from odfd.ingest.driver import ATTEMPTS, Ingested, NothingNew, SourceMoved, pull_root
from odfd.ingest.fetch.source import Unchanged
from odfd.ingest.push import PushTerms, push_files
from worlds.depth import share
from worlds.fake_engine import FakeEngine
from worlds.kinds import expect
from worlds.memory_store import MemoryChains, MemoryObjects

# Pulls and pushes: one transaction per file, exactly once, whoever else writes and whatever breaks.

DATASET = DatasetId.from_public_key(bytes(32))
READ = ReadCsv(header=True, ddl_schema=("event_time TIMESTAMP, city STRING, population BIGINT",))
JANUARY = ["2020-01-01T00:00:00Z,A,1", "2020-01-02T00:00:00Z,B,2"]
FEBRUARY = ["2020-02-01T00:00:00Z,A,3"]


async def test_a_fault_of_the_engine_keeps_its_rule_hint_and_place(polling: Callable[..., Any]) -> None:
    """All of them were of the rule ``ingest``, with nothing to do next."""

    class Strict(FakeEngine):
        async def ingest(self, *_: Any) -> InvalidQuery:
            return InvalidQuery(message="3 columns", rule="read-columns", hint="mend it", place="01.csv:7")

    bench = polling(rows=JANUARY)
    bench.engine = Strict()
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
    bench = polling(rows=JANUARY)
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

    bench = polling(rows=JANUARY)
    bench.engine = Reading()
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
    bench = polling(rows=JANUARY)
    await pull_root(bench.deps, DATASET)
    bench.write("02.csv", *JANUARY)
    outcome = expect(Ingested, await pull_root(bench.deps, DATASET))
    assert (outcome.blocks, outcome.rows) == (1, 0)
    last = bench.events()[-1]
    assert last.new_data is None
    assert last.new_watermark == bench.events()[-2].new_watermark
    assert last.new_source_state.value == "02.csv"


async def test_a_lost_race_plans_again_on_the_new_head(polling: Callable[..., Any]) -> None:
    bench = polling(rows=JANUARY)
    others = [SetInfo(description="one"), SetInfo(description="two")]

    def interfere() -> None:
        if others:
            head = bench.chains.chain(DATASET).head()
            bench.append(head, [others.pop(0)], system_time=bench.tick())

    bench.before_commit = interfere
    outcome = expect(Ingested, await pull_root(bench.deps, DATASET))
    assert outcome.blocks == 2
    assert bench.commits == 3
    assert sum(isinstance(event, AddData) for event in bench.events()) == 1
    assert bench.leftovers() == []


async def test_a_race_lost_for_ever_is_a_conflict(polling: Callable[..., Any]) -> None:
    bench = polling(rows=JANUARY)
    count = iter(range(100))

    def interfere() -> None:
        head = bench.chains.chain(DATASET).head()
        bench.append(head, [SetInfo(description=str(next(count)))], system_time=bench.tick())

    bench.before_commit = interfere
    with pytest.raises(Conflict):
        await pull_root(bench.deps, DATASET)
    assert bench.leftovers() == []


async def test_bad_data_stops_at_its_file_and_keeps_what_was_committed(polling: Callable[..., Any]) -> None:
    bench = polling(rows=JANUARY)
    bench.write("02.csv", "yesterday,A,1")
    with pytest.raises(Invalid):
        await pull_root(bench.deps, DATASET)
    assert load_state(bench.chains.chain(DATASET)).source_state.value == "01.csv"
    assert bench.leftovers() == []
    bench.write("02.csv", *FEBRUARY)
    outcome = expect(Ingested, await pull_root(bench.deps, DATASET))
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
    bench = polling(rows=JANUARY)
    bench.engine = Liar(change)
    before = bench.events()
    with pytest.raises(fault, match=said):
        await pull_root(bench.deps, DATASET)
    assert bench.events() == before
    assert bench.leftovers() == []


@pytest.mark.parametrize("back", [lambda _: None, lambda mark: Instant(mark - 1)])
async def test_an_engine_moves_no_watermark_back(
    back: Callable[[Instant], Instant | None], polling: Callable[..., Any]
) -> None:
    bench = polling(rows=JANUARY)
    await pull_root(bench.deps, DATASET)
    mark, before = load_state(bench.chains.chain(DATASET)).watermark, bench.events()
    bench.engine = Liar(lambda answer: msgspec.structs.replace(answer, new_watermark=back(mark)))
    bench.write("02.csv", *FEBRUARY)
    with pytest.raises(Invalid, match="moved the watermark back"):
        await pull_root(bench.deps, DATASET)
    assert bench.events() == before


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
    outcome = expect(Ingested, await push_files(bench.deps, DATASET, files, PushTerms(read=READ)))
    assert (outcome.rows, outcome.blocks) == (3, 3)
    _, source, schema, data = bench.events()
    assert source == AddPushSource(source_name="auto", read=READ, merge=MergeAppend())
    assert isinstance(schema, SetDataSchema)
    assert data.new_source_state is None
    again = expect(Ingested, await push_files(bench.deps, DATASET, files[1:]))
    assert (again.rows, again.blocks) == (1, 1)
    with pytest.raises(Invalid, match="no push source 'other'"):
        await push_files(bench.deps, DATASET, files, PushTerms(source="other"))


async def test_a_polled_dataset_is_not_pushed_to(polling: Callable[..., Any]) -> None:
    bench = polling()
    with pytest.raises(Refused, match="the dataset polls its source"):
        await push_files(bench.deps, DATASET, [bench.write("a.csv", *JANUARY)])


async def test_block_times_are_whole_milliseconds_and_never_go_back(polling: Callable[..., Any]) -> None:
    bench = polling(rows=JANUARY)
    start = bench.clock
    bench.clock += 1_234_567 - instant.SECOND
    await pull_root(bench.deps, DATASET)
    state = load_state(bench.chains.chain(DATASET))
    assert state.system_time % 1_000_000 == 0
    times = [bench.chains.chain(DATASET).block_at(number).system_time for number in range(state.size)]
    assert times == sorted(times)
    assert times[-1] >= start


async def test_a_clock_days_behind_the_last_block_takes_nothing_in(polling: Callable[..., Any]) -> None:
    bench = polling(rows=JANUARY)
    bench.clock -= 3 * 86400 * instant.SECOND
    before = bench.events()
    with pytest.raises(Refused, match="the clock of this machine says 2023-12-29"):
        await pull_root(bench.deps, DATASET)
    assert bench.events() == before
    bench.clock += 3 * 86400 * instant.SECOND
    assert isinstance(await pull_root(bench.deps, DATASET), Ingested)


# A push is taken in once, however often it is sent, and each file of a snapshot source is a snapshot.

ONE, TWO = "2024-01-01T00:00:00Z,Graz,1", "2024-01-02T00:00:00Z,Wien,2"


def with_source(bench: Any, merge: MergeStrategy) -> None:
    source = AddPushSource(source_name="gate", read=READ, merge=merge)
    bench.append(None, [Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT), source])


class Appending(FakeEngine):
    """Takes each batch as it is: what a strategy makes of it is not looked at here."""

    async def ingest(self, request: Any, *rest: Any) -> Any:
        return await super().ingest(msgspec.structs.replace(request, merge=MergeAppend()), *rest)


def rows(bench: Any) -> int:
    added = [event.new_data for event in bench.events() if isinstance(event, AddData) and event.new_data]
    return sum(each.offset_interval.end - each.offset_interval.start + 1 for each in added)


@pytest.mark.parametrize("named", [None, "monday"])
async def test_a_push_that_is_sent_again_is_answered_as_the_first_time(bench: Any, named: str | None) -> None:
    """Its client did not hear of the answer: the connection broke, or the node was killed after the commit."""
    with_source(bench, MergeAppend())
    files, terms = [bench.write("a.csv", ONE), bench.write("b.csv", TWO)], PushTerms(id=named)
    first = await push_files(bench.deps, DATASET, files, terms, bench)
    again = await push_files(bench.deps, DATASET, files, terms, bench)
    assert isinstance(first, Ingested)
    assert isinstance(again, Ingested)
    assert (again.head, again.blocks, again.rows, again.counts) == (first.head, first.blocks, first.rows, first.counts)
    assert (first.repeated, again.repeated) == (0, first.blocks)
    assert (rows(bench), bench.commits) == (2, 1)
    once_more = expect(Ingested, await push_files(bench.deps, DATASET, files, PushTerms(id=named, again=True), bench))
    assert (once_more.repeated, rows(bench)) == (0, 4)


async def test_a_chain_is_read_once_for_a_push(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again only where somebody else moved its head."""
    with_source(bench, MergeAppend())
    read: list[ChainState] = []
    monkeypatch.setattr(driver, "load_state", lambda chain: read.append(load_state(chain)) or read[-1])
    await push_files(bench.deps, DATASET, [bench.write("a.csv", ONE)], PushTerms(), bench)
    assert len(read) == 1

    def overtaken() -> None:
        bench.before_commit = lambda: None
        bench.append(bench.chains.chain(DATASET).head(), [SetInfo(description="by others")], system_time=bench.tick())

    bench.before_commit = overtaken
    await push_files(bench.deps, DATASET, [bench.write("b.csv", TWO)], PushTerms(), bench)
    assert [state.sequence_number for state in read] == [1, 3, 4]
    assert rows(bench) == 2


async def test_other_content_is_another_push(bench: Any) -> None:
    with_source(bench, MergeAppend())
    file = bench.write("a.csv", ONE)
    await push_files(bench.deps, DATASET, [file], PushTerms(), bench)
    at = PushTerms(event_time=instant.parse("2024-05-01T00:00:00Z"))
    await push_files(bench.deps, DATASET, [file], at, bench)
    await push_files(bench.deps, DATASET, [bench.write("b.csv", ONE)], PushTerms(), bench)
    bench.write("a.csv", TWO)
    await push_files(bench.deps, DATASET, [file], PushTerms(), bench)
    assert rows(bench) == 4


async def test_an_id_stands_for_one_push(bench: Any) -> None:
    with_source(bench, MergeAppend())
    await push_files(bench.deps, DATASET, [bench.write("a.csv", ONE)], PushTerms(id="x"), bench)
    with pytest.raises(Refused, match="'x' was used for a push of other files") as caught:
        await push_files(bench.deps, DATASET, [bench.write("b.csv", TWO)], PushTerms(id="x"), bench)
    assert (caught.value.rule, "--again" in caught.value.hint) == ("push-id", True)
    for bad in ("", "x" * 201):
        with pytest.raises(Refused, match="characters"):
            await push_files(bench.deps, DATASET, [bench.write("b.csv", TWO)], PushTerms(id=bad), bench)
    assert rows(bench) == 1


async def test_two_files_of_a_snapshot_source_are_two_snapshots(bench: Any) -> None:
    bench.engine = Appending()
    with_source(bench, MergeSnapshot(primary_key=("city",)))
    one = bench.write("a.csv", ONE)
    two = bench.write("b.csv", ONE.replace(",1", ",7"), TWO)
    done = expect(Ingested, await push_files(bench.deps, DATASET, [one, two], PushTerms(), bench))
    data = [event for event in bench.events() if isinstance(event, AddData)]
    assert len(data) == 2
    assert (done.files, len(bench.pushes)) == (2, 2)


async def test_a_snapshot_may_come_back(bench: Any) -> None:
    """What was published on Monday may be so again on Wednesday: only right after itself is it the same push."""
    bench.engine = Appending()
    with_source(bench, MergeSnapshot(primary_key=("city",)))
    one, other = bench.write("a.csv", ONE), bench.write("b.csv", ONE.replace(",1", ",7"))
    for file, blocks in ((one, True), (one, False), (other, True), (one, True)):
        before = bench.commits
        await push_files(bench.deps, DATASET, [file], PushTerms(), bench)
        assert (bench.commits > before) is blocks
    before = bench.commits
    for file in (other, one, other):
        done = await push_files(bench.deps, DATASET, [file], PushTerms(id=file.name), bench)
    assert bench.commits == before + 2
    assert isinstance(done, Ingested)
    assert done.repeated == done.blocks


@pytest.mark.parametrize("named", [None, "monday"])
@pytest.mark.parametrize("killed_after", [0, 1, 2, 3])
async def test_snapshots_sent_again_are_taken_in_once(bench: Any, killed_after: int, named: str | None) -> None:
    """The first is as the third, so that neither the newest push nor what a file holds tells how far it had come."""
    bench.engine = Appending()
    with_source(bench, MergeSnapshot(primary_key=("city",)))
    one, two, once_more = (bench.write(name, row) for name, row in (("a.csv", ONE), ("b.csv", TWO), ("c.csv", ONE)))
    files, terms = [one, two, once_more], PushTerms(id=named)

    def kill() -> None:
        if bench.commits == killed_after:
            raise RuntimeError("killed")

    bench.before_commit = kill
    if killed_after < len(files):
        with pytest.raises(RuntimeError, match="killed"):
            await push_files(bench.deps, DATASET, files, terms, bench)
    bench.before_commit = lambda: None
    first = await push_files(bench.deps, DATASET, files, terms, bench)
    again = await push_files(bench.deps, DATASET, files, terms, bench)
    assert isinstance(first, Ingested)
    assert isinstance(again, Ingested)
    assert (again.head, again.blocks, again.rows, again.counts) == (first.head, first.blocks, first.rows, first.counts)
    assert (again.repeated, rows(bench), bench.commits) == (again.blocks, 3, 3)


async def test_a_snapshot_that_changed_nothing_counts_with_those_behind_it(bench: Any) -> None:
    """Nothing is committed for it, so nothing is remembered of it; what came behind it tells that it was taken in."""
    with_source(bench, MergeSnapshot(primary_key=("city",)))
    files = [bench.write("a.csv", ONE), bench.write("b.csv", ONE), bench.write("c.csv", TWO)]
    merges = iter((MergeAppend(), MergeLedger(primary_key=("event_time", "city")), MergeAppend()))

    class Second(FakeEngine):
        async def ingest(self, request: Any, *rest: Any) -> Any:
            return await super().ingest(msgspec.structs.replace(request, merge=next(merges)), *rest)

    bench.engine = Second()
    await push_files(bench.deps, DATASET, files, PushTerms(), bench)
    again = expect(Ingested, await push_files(bench.deps, DATASET, files, PushTerms(), bench))
    assert (again.repeated, again.files, rows(bench), bench.commits) == (again.blocks, 3, 2, 2)


async def test_a_format_is_honoured_or_refused(bench: Any) -> None:
    with_source(bench, MergeAppend())
    file = bench.write("a.csv", ONE)
    with pytest.raises(Refused, match="the push source 'gate' reads Csv, not NdJson") as caught:
        await push_files(bench.deps, DATASET, [file], PushTerms(read=ReadNdJson()), bench)
    assert caught.value.rule == "push-format"
    assert isinstance(await push_files(bench.deps, DATASET, [file], PushTerms(read=ReadCsv()), bench), Ingested)


async def test_what_appended_nothing_is_looked_at_again(bench: Any) -> None:
    """All of it was known; nothing was promised for the next time."""
    with_source(bench, MergeLedger(primary_key=("event_time", "city")))
    await push_files(bench.deps, DATASET, [bench.write("a.csv", ONE)], PushTerms(), bench)
    known = bench.write("b.csv", ONE)
    for _ in range(2):
        assert isinstance(await push_files(bench.deps, DATASET, [known], PushTerms(), bench), NothingNew)
    assert [push.sequence for push in bench.pushes] == [bench.chains.chain(DATASET).head().sequence_number]


async def test_a_dataset_that_is_deleted_meanwhile_is_named_so(bench: Any) -> None:
    """Its chain is empty, which says nothing of what it was."""
    with pytest.raises(NotFound, match="deleted meanwhile"):
        await push_files(bench.deps, DATASET, [bench.write("a.csv", "2020-01-01T00:00:00Z,A,1")], PushTerms(read=READ))


# Manifests applied during a pull: rows stand after the source that they were fetched from, whenever it happens.

FILES = 3
ACTIONS = ("", "", "source 0", "source 1", "source 2", "info", "disable", "take")
"""What happens at each of the places where a pull waits for something. ``take``: somebody else commits what is next."""


class Meanwhile:
    """A pull, and what is done at each place of it."""

    def __init__(self, bench: Any, actions: list[str]) -> None:
        self.bench, self.actions, self.planned = bench, list(actions), tuple(actions)
        bench.append(None, [Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT), self.source(0)])
        for version in range(3):
            for number in range(FILES):
                name = f"v{version}-{number}"
                path = bench.folder / "source" / f"v{version}"
                path.mkdir(exist_ok=True)
                (path / f"{number}{version}.csv").write_text(
                    f"event_time,city,population\n2020-01-0{number + 1}T00:00:00Z,{name},1\n"
                )
        bench.before_commit = self.apply_next
        bench.engine = Engine(self.act)

    def source(self, version: int) -> SetPollingSource:
        path = str(self.bench.folder / "source" / f"v{version}" / "*.csv")
        return SetPollingSource(fetch=FetchFilesGlob(path=path), read=READ, merge=MergeAppend())

    async def act(self) -> None:
        if self.actions[:1] == ["take"]:
            # A pull of its own, as of an import that brings what another node of the same owner took.
            before, self.actions = self.actions[1:], []
            if load_state(self.bench.chains.chain(DATASET)).polling_source is not None:
                await pull_root(self.bench.deps, DATASET)
            self.actions = before
        else:
            self.apply_next()

    def apply_next(self) -> None:
        name, _, version = (self.actions.pop(0) if self.actions else "").partition(" ")
        state = load_state(self.bench.chains.chain(DATASET))
        if name == "source" and state.polling_source != self.source(int(version)):
            self.apply(self.source(int(version)))
        elif name == "info":
            self.apply(SetInfo(description=str(self.bench.clock)))
        elif name == "disable" and state.polling_source is not None:
            self.apply(DisablePollingSource())

    def apply(self, event: Any) -> None:
        self.bench.append(self.bench.chains.chain(DATASET).head(), [event], system_time=self.bench.tick())

    def rows(self) -> list[tuple[str | None, str]]:
        """Of each row in the chain, the folder of the source in force, and what the row says."""
        found: list[tuple[str | None, str]] = []
        inforce: SetPollingSource | None = None
        for event in self.bench.events():
            if isinstance(event, SetPollingSource):
                inforce = event
            elif isinstance(event, DisablePollingSource):
                inforce = None
            elif isinstance(event, AddData) and event.new_data is not None:
                with open_slice(self.bench.objects.path(event.new_data.physical_hash)) as source:
                    cities = source.read().column("city").to_pylist()
                assert inforce is None or isinstance(inforce.fetch, FetchFilesGlob)
                folder = None if inforce is None else Path(inforce.fetch.path).parent.name
                found += [(folder, city) for city in cities]
        return found


class Engine(FakeEngine):
    def __init__(self, act: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self.act = act

    async def ingest(self, request: Any, on_progress: Any = lambda: None) -> Any:
        await self.act()
        answer = await super().ingest(request, on_progress)
        await self.act()
        return answer


def check(meanwhile: Meanwhile) -> None:
    rows = meanwhile.rows()
    assert all(city.startswith(f"{folder}-") for folder, city in rows), rows
    assert len(set(rows)) == len(rows), rows
    assert meanwhile.bench.leftovers() == []


def around(meanwhile: Meanwhile) -> Callable[..., Awaitable[Any]]:
    """What fetches, with something done before it and after it."""
    fetch = trigger.fetch

    async def fetched(*args: Any) -> Any:
        await meanwhile.act()
        found = await fetch(*args)
        await meanwhile.act()
        return found

    return fetched


async def pulled(meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(trigger, "fetch", around(meanwhile))
        try:
            await pull_root(meanwhile.bench.deps, DATASET)
        except Refused:
            assert load_state(meanwhile.bench.chains.chain(DATASET)).polling_source is None
        except SourceMoved:
            assert any(each.startswith(("source", "take", "disable")) for each in meanwhile.planned)
    check(meanwhile)


@pytest.mark.slow
@settings(max_examples=share(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(ACTIONS), max_size=24))
def test_any_order_of_apply_fetch_plan_and_commit(
    tmp_path_factory: pytest.TempPathFactory, bench: Any, actions: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("bench")
    for name in ("staging", "source", "objects"):
        (folder / name).mkdir()
    objects = MemoryObjects(folder / "objects")
    fresh = type(bench)(MemoryChains(objects), objects, folder)
    with pytest.MonkeyPatch.context() as monkeypatch:
        meanwhile = Meanwhile(fresh, actions)
        trio.run(pulled, meanwhile, monkeypatch)
        # At rest it comes to an end.
        meanwhile.actions.clear()
        trio.run(pulled, meanwhile, monkeypatch)


@pytest.mark.parametrize("place", range(5))
async def test_a_new_source_is_fetched_from_at_once(bench: Any, monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    meanwhile = Meanwhile(bench, [""] * place + ["source 1"])
    monkeypatch.setattr(trigger, "fetch", around(meanwhile))
    outcome = expect(Ingested, await pull_root(bench.deps, DATASET))
    check(meanwhile)
    assert outcome.rows == outcome.files == len(meanwhile.rows()) == FILES
    assert [folder for folder, _ in meanwhile.rows()] == ["v1"] * FILES


async def test_a_source_that_never_rests_is_given_up(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile = Meanwhile(bench, ["", "source 1", "source 0"] * 40)
    fetches = []
    fetch = trigger.fetch
    monkeypatch.setattr(trigger, "fetch", lambda *args: (fetches.append(1), fetch(*args))[1])
    bench.engine.act = trio.lowlevel.checkpoint
    bench.before_commit = lambda: meanwhile.apply(meanwhile.source(len(fetches) % 2))
    with pytest.raises(SourceMoved, match="was changed while it was fetched"):
        await pull_root(bench.deps, DATASET)
    assert len(fetches) == ATTEMPTS
    assert meanwhile.rows() == []


async def test_paths_start_from_the_folder_of_the_manifest_in_force(bench: Any) -> None:
    meanwhile = Meanwhile(bench, [])
    bases = {"old": bench.folder / "source" / "v0", "new": bench.folder / "source" / "v2"}
    base = ["old"]
    relative = [SetPollingSource(fetch=FetchFilesGlob(path=f"{some}*.csv"), read=READ, merge=MergeAppend())
                for some in ("", "./")]  # fmt: skip
    meanwhile.apply(relative[0])
    deps = bench.deps
    deps.base = lambda _: bases[base[0]]

    def before() -> None:
        bench.before_commit = lambda: None
        meanwhile.apply(relative[1])
        base[0] = "new"

    bench.before_commit = before
    await pull_root(deps, DATASET)
    assert {city[:2] for _, city in meanwhile.rows()} == {"v2"}


# A second look at a snapshot that is as it was moves the watermark, once: tables show what was there.


class Snapshots(FakeEngine):
    """Takes snapshots for ledgers, as far as rows only come."""

    async def ingest(self, request: Any, *more: Any) -> Any:
        assert isinstance(request.merge, MergeSnapshot)
        return await super().ingest(msgspec.structs.replace(request, merge=MergeLedger(primary_key=("city",))), *more)


@pytest.fixture
def watching(bench: Any) -> Callable[..., Any]:
    """The bench with a root that looks at ``cities.csv``, which says no times unless ``columns`` say so."""
    path = bench.folder / "source" / "cities.csv"

    def write(*rows: str, head: str = "city,population") -> None:
        path.write_text("\n".join([head, *rows, ""]))
        os.utime(path, (bench.clock // 10**9, bench.clock // 10**9))

    def make(fetch: FetchStep | None = None, columns: str = "city STRING, population BIGINT", merge: Any = None) -> Any:
        bench.engine = Snapshots() if merge is None else FakeEngine()
        source = SetPollingSource(
            fetch=fetch or FetchUrl(url=path.as_uri()), read=ReadCsv(header=True, ddl_schema=(columns,)),
            merge=merge or MergeSnapshot(primary_key=("city",)),
        )  # fmt: skip
        bench.append(None, [Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT), source])
        return bench, write

    return make


def marks(bench: Any) -> list[tuple[bool, int | None]]:
    """(whether it has rows, watermark) of all blocks of data."""
    return [(each.new_data is not None, each.new_watermark) for each in bench.events() if isinstance(each, AddData)]


async def test_an_unchanged_file_moves_the_watermark_once(watching: Callable[..., Any]) -> None:
    bench, write = watching()
    write("A,1", "B,2")
    await pull_root(bench.deps, DATASET)
    ((_, first),) = marks(bench)
    bench.clock += 60 * instant.SECOND
    again = expect(Ingested, await pull_root(bench.deps, DATASET))
    assert (again.blocks, again.rows, again.files) == (1, 0, 0)
    assert [has for has, _ in marks(bench)] == [True, False]
    after = marks(bench)[-1][1]
    assert after > first
    assert bench.events()[-1].new_source_state == bench.events()[-2].new_source_state
    bench.clock += 60 * instant.SECOND
    assert await pull_root(bench.deps, DATASET) == NothingNew(reason="unchanged")
    write("A,1", "B,2", "C,3", "D,4")
    await pull_root(bench.deps, DATASET)
    bench.clock += 60 * instant.SECOND
    await pull_root(bench.deps, DATASET)
    assert [has for has, _ in marks(bench)] == [True, False, True, False]
    assert [mark for _, mark in marks(bench)] == sorted({mark for _, mark in marks(bench)})


async def test_the_same_rows_in_a_newer_file_move_it_too(watching: Callable[..., Any]) -> None:
    bench, write = watching()
    write("A,1", "B,2")
    await pull_root(bench.deps, DATASET)
    bench.clock += 60 * instant.SECOND
    write("A,1", "B,2")
    again = expect(Ingested, await pull_root(bench.deps, DATASET))
    assert again.rows == 0
    assert marks(bench)[-1][1] > marks(bench)[0][1]


async def test_who_changed_the_dataset_meanwhile_is_not_spoken_for(watching: Callable[..., Any]) -> None:
    bench, write = watching()
    write("A,1", "B,2")
    await pull_root(bench.deps, DATASET)

    def interfere() -> None:
        bench.before_commit = lambda: None
        bench.append(bench.chains.chain(DATASET).head(), [SetInfo(description="x")], system_time=bench.tick())

    bench.before_commit = interfere
    assert await pull_root(bench.deps, DATASET) == NothingNew(reason="unchanged")
    assert len(marks(bench)) == 1


@pytest.mark.parametrize(
    "rows", [("2023-05-01T00:00:00Z,A,1", "2023-05-02T00:00:00Z,B,2"), ("2023-05-01T00:00:00Z,A,1",)]
)
async def test_times_of_their_own_are_not_spoken_for(rows: tuple[str, ...], watching: Callable[..., Any]) -> None:
    bench, write = watching(columns="event_time TIMESTAMP, city STRING, population BIGINT")
    write(*rows, head="event_time,city,population")
    await pull_root(bench.deps, DATASET)
    assert await pull_root(bench.deps, DATASET) == NothingNew(reason="unchanged")


async def test_names_that_say_times_are_not_spoken_for(watching: Callable[..., Any], tmp_path: Any) -> None:
    named = FromPath(pattern=r"(\d{4}-\d{2}-\d{2})\.csv$", timestamp_format="%Y-%m-%d")
    bench, _ = watching(FetchFilesGlob(path=str(tmp_path / "source" / "*.csv"), event_time=named))
    (tmp_path / "source" / "2020-01-01.csv").write_text("city,population\nA,1\nB,2\n")
    await pull_root(bench.deps, DATASET)
    assert await pull_root(bench.deps, DATASET) == NothingNew(reason="unchanged")


async def test_a_ledger_is_no_snapshot(watching: Callable[..., Any]) -> None:
    bench, write = watching(merge=MergeLedger(primary_key=("city",)))
    write("A,1", "B,2")
    await pull_root(bench.deps, DATASET)
    bench.clock += 60 * instant.SECOND
    assert await pull_root(bench.deps, DATASET) == NothingNew(reason="unchanged")


# Every row that is read is accounted for, whether or not anything is committed for it.


def numbers(counts: RowCounts) -> dict[str, int]:
    """Those that are not zero."""
    fields = (name for name in RowCounts.__struct_fields__ if name not in ("skipped", "remarks"))
    return {name: getattr(counts, name) for name in fields if getattr(counts, name) != 0}


async def test_a_transaction_says_what_became_of_each_row(polling: Callable[..., Any]) -> None:
    bench = polling(rows=JANUARY)
    first = expect(Ingested, await pull_root(bench.deps, DATASET))
    assert numbers(first.counts) == {"read": 2, "shaped": 2, "appended": 2}
    bench.write("02.csv", JANUARY[0], "2020-01-02T00:00:00Z,B,99", "2019-01-01T00:00:00Z,C,3")
    bench.write("03.csv", JANUARY[1])
    second = expect(Ingested, await pull_root(bench.deps, DATASET))
    expected = {"read": 4, "shaped": 4, "appended": 1, "unchanged": 2, "conflicting": 1, "late": 1}
    assert numbers(second.counts) == expected
    assert [each.read for each in bench.counts] == [2, 3, 1]


async def test_rows_for_which_nothing_is_committed_are_counted_too(bench: Any) -> None:
    bench.append(None, [Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT)])
    file = bench.write("a.csv")
    expect(Ingested, await push_files(bench.deps, DATASET, [file], PushTerms(read=READ)))
    before = len(bench.events())
    again = expect(NothingNew, await push_files(bench.deps, DATASET, [file]))
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
    outcome = expect(NothingNew, await pull_root(bench.deps, DATASET))
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
    bench = polling(rows=JANUARY)
    bench.engine = Forgetful()
    outcome = await pull_root(bench.deps, DATASET)
    assert (outcome.counts.read, outcome.counts.unchanged) == (None, None)
    assert (outcome.counts.appended, outcome.counts.corrected, outcome.counts.retracted) == (2, 0, 0)


@pytest.mark.parametrize("told", [{"read": 3, "shaped": 3}, {"read": 3}, {"quarantined": 1}])
async def test_an_engine_that_loses_a_row_is_refused(polling: Callable[..., Any], told: dict[str, int]) -> None:
    """Rows are written or accounted for, and those that were read are rows or set aside."""

    class Lossy(FakeEngine):
        async def ingest(self, request: Any, on_progress: Any = lambda: None) -> Any:
            answer = expect(Success, await super().ingest(request, on_progress))
            assert answer.rows is not None
            counts = {name: getattr(answer.rows, name) for name in RowCounts.__struct_fields__}
            rows = RowCounts(**{**counts, **told})
            return Success(
                new_offset_interval=answer.new_offset_interval, new_watermark=answer.new_watermark,
                schema=answer.schema, rows=rows,
            )  # fmt: skip

    bench = polling(rows=JANUARY)
    bench.engine = Lossy()
    with pytest.raises(Invalid, match=r"what became of 1 of them|that the engine read"):
        await pull_root(bench.deps, DATASET)
