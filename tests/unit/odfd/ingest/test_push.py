"""A push is taken in once, however often it is sent, and each file of a snapshot source is a snapshot."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from chain import instant
from chain.errors import NotFound, Refused
from chain.ids import DatasetId
from chain.model.events import AddData, AddPushSource, DatasetKind, Seed, SetInfo
from chain.model.source import MergeAppend, MergeLedger, MergeSnapshot, MergeStrategy, ReadCsv, ReadNdJson
from chain.state import ChainState, load_state
from odfd.ingest import driver
from odfd.ingest.driver import Ingested, NothingNew
from odfd.ingest.push import PushTerms, push_files
from worlds.fake_engine import FakeEngine

DATASET = DatasetId.from_public_key(bytes(32))
READ = ReadCsv(header=True, ddl_schema=("event_time TIMESTAMP, city STRING, population BIGINT",))
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
    once_more = await push_files(bench.deps, DATASET, files, PushTerms(id=named, again=True), bench)
    assert isinstance(once_more, Ingested)
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
    done = await push_files(bench.deps, DATASET, [one, two], PushTerms(), bench)
    assert isinstance(done, Ingested)
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
    again = await push_files(bench.deps, DATASET, files, PushTerms(), bench)
    assert isinstance(again, Ingested)
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
