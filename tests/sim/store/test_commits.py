"""Commits of two writers, and of captures with their blocks: a death at any step leaves all of one or nothing.

Each writer reads frontier and head, plans the next messages of one source, and commits what it planned, with the real
committer and the real store. Hypothesis chooses the order of their steps. Whatever it is: of several plans on one state
one is taken; the others are refused in words that name what won; every message is there once, in order; no block is of
a time that was complete.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from chain import instant
from chain.errors import Conflict
from chain.instant import MILLISECOND, Instant, from_millis, to_millis
from chain.model.events import AddData, DatasetKind, Seed, SetInfo, SourceState
from chain.state import load_state
from chain.store.base import Head, UpperMove
from chain.store.collect import collect
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from chain.store.sqlite_shards import SqliteShards
from odfd.datasets.commit import Commit, CommitPart, block_time
from odfd.ingest.driver import keep_raw
from odfd.ingest.plan import Batch
from odfd.ingest.sharded_writes import ShardedWrites
from odfd.renditions.timeline import RenditionRow, Switch, Timeline
from odfd.store import captures, collections, references
from odfd.store.collections import CollectionState, Member
from odfd.store.keys.keystore import KeyStore
from odfd.store.ledger import log
from odfd.trust.signing.owner_commit import OwnerCommitter
from worlds.depth import share

START = instant.parse("2026-01-01T00:00:00Z")
STEPS = ("commit-begun", "commit-objects", "commit-blocks", "commit-also", "commit-durable")
_STEP = st.one_of(
    st.tuples(st.sampled_from(["plan", "commit"]), st.integers(0, 1), st.integers(1, 3)),
    st.tuples(st.just("promise"), st.just(0), st.integers(0, 5)),
    st.tuples(st.just("tick"), st.just(0), st.integers(-3, 5)),
    st.tuples(st.sampled_from(STEPS), st.integers(0, 1), st.just(0)),
)


class Died(Exception):
    """The process ended at a step of a commit; the next one opens what is there."""


class Plan(NamedTuple):
    head: Head
    upper: int
    time: Instant
    messages: tuple[int, ...]


class Life:
    """A dataset of messages 0, 1, 2, ... and its two writers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.now = int(START)
        self.dies_at = ""
        self._open()
        self.dataset = self.keys.new_dataset_key().dataset_id
        seed = Seed(dataset_id=self.dataset, dataset_kind=DatasetKind.ROOT)
        part = CommitPart(dataset=self.dataset, expected=None, events=(seed,), time=START)
        self.committer.commit_now(Commit(parts=(part,)))
        self.promised = 0
        self.plans: list[Plan | None] = [None, None]

    def _open(self) -> None:
        self.database = open_database(self._folder / "odfd.sqlite")
        objects = DiskObjects(self._folder / "objects", self.database)
        self.chains = SqliteChains(self.database, objects, self._step)
        for room in (references, log, collections):
            self.database.migrate(room.ROOM, room.STEPS)
        self.keys = KeyStore(self._folder / "keys", lambda count: bytes(range(count)))
        self.committer = OwnerCommitter(
            self.database,
            self.chains,
            self.keys,
            lambda: Instant(self.now),
            lambda *_: None,
            ShardedWrites(self.database, self.chains, objects),
            lambda _: False,
            lambda _: 0,
        )

    def _step(self, name: str) -> None:
        if name == self.dies_at:
            raise Died(name)

    def messages(self) -> list[tuple[int, int]]:
        """What is stored: of each message its number, and the time of its block."""
        chain = self.chains.chain(self.dataset)
        head = chain.head()
        assert head is not None
        blocks = [chain.block_at(number) for number in range(1, head.size)]
        infos = [(block.event, to_millis(block.system_time)) for block in blocks]
        return [(int(event.description or ""), time) for event, time in infos if isinstance(event, SetInfo)]

    def plan(self, writer: int, count: int) -> None:
        upper, state = self.chains.upper(self.dataset), load_state(self.chains.chain(self.dataset))
        assert state.head is not None
        time = block_time(state, Instant(self.now), upper)
        following = state.size - 1
        self.plans[writer] = Plan(
            Head(state.head, state.sequence_number), upper, time, tuple(range(following, following + count))
        )

    def commit(self, writer: int) -> None:
        plan, self.plans[writer] = self.plans[writer], None
        if plan is None:
            return
        before, upper = self.chains.chain(self.dataset).head(), self.chains.upper(self.dataset)
        fits = (before, upper) == (plan.head, plan.upper)
        events = [SetInfo(description=str(each)) for each in plan.messages]
        part = CommitPart(
            dataset=self.dataset, expected=plan.head, events=events, time=plan.time, upper=UpperMove(plan.upper)
        )
        work = Commit(parts=(part,))
        if fits:
            (head,) = trio.run(self.committer.commit, work)
            assert head == self.chains.chain(self.dataset).head()
            return
        assert before is not None
        won = before.hash.short if before != plan.head else str(upper)
        with pytest.raises(Conflict, match=won):
            trio.run(self.committer.commit, work)
        assert self.chains.chain(self.dataset).head() == before

    def die(self, step: str, writer: int) -> None:
        """At the step of a commit; what it planned is lost with the process, and so is the other's plan."""
        self.dies_at = step
        with contextlib.suppress(Died):
            self.commit(writer)
        self.dies_at, self.plans = "", [None, None]
        self.database.close()
        self._open()
        self.committer.sign_unsigned(self.dataset)

    def promise(self, ahead: int) -> None:
        upper = max(self.now // MILLISECOND + ahead, self.promised)
        SqliteShards(self.database, self.chains).advance([self.dataset], upper)
        self.promised = max(self.promised, self.chains.upper(self.dataset))


@contextlib.contextmanager
def life() -> Iterator[Life]:
    with tempfile.TemporaryDirectory() as folder:
        made = Life(Path(folder))
        yield made
        made.database.close()


@pytest.mark.slow
@given(st.lists(_STEP, max_size=25))
def test_one_of_two_writers_wins_and_every_message_is_there_once(steps: list[tuple[str, int, int]]) -> None:
    with life() as world:
        for kind, writer, number in steps:
            stored, complete = world.messages(), world.chains.upper(world.dataset)
            match kind:
                case "plan":
                    world.plan(writer, number)
                case "commit":
                    world.commit(writer)
                case "promise":
                    world.promise(number)
                case "tick":
                    world.now += number * MILLISECOND
                case step:
                    world.die(step, writer)
            now = world.messages()
            assert now[: len(stored)] == stored
            assert [each for each, _ in now] == list(range(len(now)))
            assert all(time >= complete for _, time in now[len(stored) :])
            assert world.chains.upper(world.dataset) >= complete


def test_who_plans_before_a_promise_is_refused_with_the_frontier_that_is_now() -> None:
    with life() as world:
        world.now += 10 * MILLISECOND
        world.plan(0, 1)
        world.promise(-5)
        plan = world.plans[0]
        assert plan is not None
        upper = world.chains.upper(world.dataset)
        assert plan.upper < upper < to_millis(plan.time), "the block itself would have come after it"
        world.commit(0)
        assert world.messages() == []
        world.plan(0, 1)
        world.commit(0)
        assert len(world.messages()) == 1


# A capture and its block are there together or not at all, wherever the process dies; bytes come before both.

DURABLE_STEPS = (
    "object-hashed",
    "object-synced",
    "object-renamed",
    "object-folder-synced",
    "commit-begun",
    "commit-objects",
    "commit-blocks",
    "commit-also",
    "commit-durable",
    "",
)


SHARDS = st.sampled_from([1, 3])


class Node:
    def __init__(self, folder: Path, shards: int = 1) -> None:
        self.folder, self.dies_at, self._draws = folder, "", count()
        self._open()
        self.shards = [self.keys.new_dataset_key().dataset_id for _ in range(shards)]
        self.dataset = self.shards[0]
        for each in self.shards:
            seed = Seed(dataset_id=each, dataset_kind=DatasetKind.ROOT)
            part = CommitPart(dataset=each, expected=None, events=(seed,), time=START)
            self.committer.commit_now(Commit(parts=(part,)))
        if shards > 1:
            row = RenditionRow(number=0, shards=tuple(map(str, self.shards)), by=("city",))
            with self.database.write() as connection:
                timeline = Timeline((Switch(0, "", row),), 0)
                members = (Member(row=row, origin="first"),)
                collections.keep(connection, CollectionState(id=self.dataset, members=members, timeline=timeline))

    def _open(self) -> None:
        self.database = open_database(self.folder / "odfd.sqlite")
        self.objects = DiskObjects(self.folder / "objects", self.database, self._step)
        self.chains = SqliteChains(self.database, self.objects, self._step)
        for room in (references, log, captures, collections):
            self.database.migrate(room.ROOM, room.STEPS)
        self.keys = KeyStore(self.folder / "keys", lambda size: next(self._draws).to_bytes(size))
        shards = ShardedWrites(self.database, self.chains, self.objects)
        self.committer = OwnerCommitter(
            self.database, self.chains, self.keys, lambda: START, lambda *_: None, shards, lambda _: False, lambda _: 0
        )

    def _step(self, name: str) -> None:
        if name == self.dies_at:
            raise Died(name)

    def ingest(self, number: int, size: int, dies_at: str) -> None:
        """As the driver does: bytes, then block and capture."""
        state = load_state(self.chains.chain(self.dataset))
        assert state.head is not None
        label = SourceState(source_name="s", kind="k", value=str(number))
        source = self.folder / f"{number}.csv"
        source.write_bytes(b"%d " % number * size)
        self.dies_at = dies_at
        batch = Batch(paths=(source,), names=(source.name,), identity="", state=label)
        with contextlib.suppress(Died):
            capture = keep_raw(self.objects, batch, "")
            event = AddData(new_watermark=Instant(START + number * 10**6), new_source_state=label)
            time = START if len(self.shards) == 1 else from_millis(self.chains.upper(self.dataset))
            expected = Head(state.head, state.sequence_number)
            part = CommitPart(dataset=self.dataset, expected=expected, events=(event,), time=time, records=(capture,))
            trio.run(self.committer.commit, Commit(parts=(part,)))
        self.dies_at = ""
        if dies_at:
            self.database.close()
            self._open()
            for each in self.shards:
                self.committer.sign_unsigned(each)

    def check(self) -> None:
        with self.database.read() as connection:
            bound = captures.of(connection, self.dataset)
        for number, shard in enumerate(self.shards):
            chain = self.chains.chain(shard)
            head = chain.head()
            assert head is not None
            parts = [each.parts[number] for each in bound]
            assert [each.block for each in parts] == [chain.block_at(number).hash for number in range(1, head.size)]
            for each, part in zip(bound, parts, strict=True):
                block = chain.block_at(part.last)
                assert isinstance(block.event, AddData)
                assert (part.dataset, part.first, each.time) == (shard, part.last, to_millis(block.system_time))
                assert each.capture.label == block.event.new_source_state
        for each in bound:
            (file,) = each.capture.files
            assert self.objects.read(file.object) == (self.folder / file.name).read_bytes()


@pytest.mark.slow
@settings(max_examples=share(50))
@given(
    st.lists(st.tuples(st.sampled_from([1, 40_000]), st.sampled_from(DURABLE_STEPS), st.booleans()), max_size=4), SHARDS
)
def test_a_capture_and_its_block_are_there_together(lives: list[tuple[int, str, bool]], shards: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder), shards)
        for number, (size, dies_at, collects) in enumerate(lives):
            node.ingest(number, size, dies_at)
            node.check()
            if collects:
                collect(node.chains, node.objects, captures.objects(node.database))
                node.check()
        node.database.close()


def test_a_damaged_row_stops_the_collector(tmp_path: Path) -> None:
    """What it names cannot be told, so nothing may be freed."""
    node = Node(tmp_path)
    node.ingest(0, 1, "")
    with node.database.write() as connection:
        connection.execute("UPDATE captures SET body = x'7b7d'")
    with pytest.raises(Exception, match="damaged on disk"):
        captures.objects(node.database)
    node.database.close()
