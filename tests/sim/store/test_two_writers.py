"""Two writers of one dataset, a promise between any two of their steps, and a death at any step of a commit.

Each writer reads frontier and head, plans the next messages of one source, and commits what it planned, with the real
committer and the real store. Hypothesis chooses the order of their steps. Whatever it is: of several plans on one state
one is taken; the others are refused in words that name what won; every message is there once, in order; no block is of
a time that was complete.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Conflict
from chain.instant import MILLISECOND, Instant, to_millis
from chain.model.events import DatasetKind, Seed, SetInfo
from chain.state import load_state
from chain.store.base import Head, UpperMove
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from chain.store.sqlite_shards import SqliteShards
from odfd.datasets.commit import Commit, CommitPart, block_time
from odfd.ingest.sharded_writes import ShardedWrites
from odfd.store import collections, references
from odfd.store.keys.keystore import KeyStore
from odfd.store.ledger import log
from odfd.trust.signing.owner_commit import OwnerCommitter

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
