"""Read holds over a real store: any order of holds, renewals, releases, resets, deletions, collections and ticks.

Hypothesis chooses the steps and a plain model says what they must do. While a hold lives nothing takes its rows: each
slice of its cut is there, and the chain has its block. When none lives history may be given up again. A death in the
middle of a step, or between two, changes nothing of that.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.codec.blocks import encode_block
from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import SECOND, Instant, to_millis
from chain.model.block import Block, MetadataBlock, objects_of
from chain.model.events import AddData, DatasetKind, DataSlice, OffsetInterval, Seed
from chain.multihash import Multihash
from chain.store.base import Append, Head, Rewrite
from chain.store.collect import collect
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.store import read_holds
from odfd.store.read_holds import MAX_OF_DATASET, HistoryHeld, HoldGuard, ReadHold, ReadHolds

D = DatasetId.from_public_key(bytes(32))
STEPS = ("rewrite-begun", "rewrite-cut", "rewrite-blocks", "rewrite-also", "rewrite-durable")
_TTL = st.integers(1, 20)
_STEP = st.one_of(
    st.tuples(st.just("append"), st.just(0)),
    st.tuples(st.just("take"), _TTL),
    st.tuples(st.just("renew"), _TTL),
    st.tuples(st.just("release"), st.integers(0, 9)),
    st.tuples(st.just("tick"), st.integers(-5, 15)),
    st.tuples(st.just("reset"), st.integers(1, 9)),
    st.tuples(st.just("delete"), st.just(0)),
    st.tuples(st.just("die"), st.integers(0, len(STEPS))),
    st.tuples(st.just("collect"), st.just(0)),
)


GONE: tuple[ReadHold, list[Multihash]] = (
    ReadHold(id="", dataset=D, time=0, block=Multihash(), taken=Instant(0), expires=Instant(0)),
    [],
)


class Died(Exception):
    pass


class Store:
    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self.dies_at, self.count = folder, 1_000 * SECOND, "", 0
        self.living: dict[str, tuple[ReadHold, list[Multihash]]] = {}
        """The model: holds, until when they live, and the slices that their readers need."""
        self.open()

    def open(self) -> None:
        self.database = open_database(self.folder / "odfd.sqlite")
        self.database.migrate(read_holds.ROOM, read_holds.STEPS)
        self.objects = DiskObjects(self.folder / "objects", self.database, self._step)
        self.chains = SqliteChains(self.database, self.objects, self._step, HoldGuard(lambda: Instant(self.now)))

    def _step(self, name: str) -> None:
        if name == self.dies_at:
            raise Died(name)

    def blocks(self) -> list[Block]:
        head = self.chains.chain(D).head()
        return [self.chains.chain(D).block_at(number) for number in range(head.size if head else 0)]

    def append(self) -> None:
        found = self.blocks()
        event: Seed | AddData = Seed(dataset_id=D, dataset_kind=DatasetKind.ROOT)
        if found:
            self.count += 1
            name = self.objects.add_bytes(b"slice %d" % self.count)
            interval = OffsetInterval(start=len(found) - 1, end=len(found) - 1)
            data = DataSlice(logical_hash=name, physical_hash=name, offset_interval=interval, size=len(b"slice "))
            event = AddData(new_data=data)
        last = found[-1] if found else None
        content = MetadataBlock(
            system_time=Instant(self.now),
            prev_block_hash=last.hash if last else None,
            sequence_number=len(found),
            event=event,
        )
        head = Head(last.hash, last.sequence_number) if last else None
        block = encode_block(content)
        names = [name for name, _ in objects_of(block)]
        self.chains.commit([Append(dataset=D, expected=head, blocks=[block], objects=names)])

    def holds(self) -> list[str]:
        """Those that live, by the model."""
        return [each for each, (hold, _) in self.living.items() if self.now < (hold.expires or 0)]

    def swept(self) -> None:
        """Those that expired are gone for good, also where the clock goes back."""
        for each in [each for each in self.living if each not in self.holds()]:
            self.living[each] = GONE

    def take(self, ttl: int) -> None:
        found = self.blocks()
        if not found:
            return
        hold = ReadHold(
            id=f"h{len(self.living)}",
            dataset=D,
            time=to_millis(found[-1].system_time),
            block=found[-1].hash,
            taken=Instant(0),
            expires=Instant(0),
        )
        with self.database.write() as connection:
            taken = ReadHolds(connection).take(hold, ttl * SECOND, Instant(self.now))
        self.swept()
        needed = [name for block in found for name, _ in objects_of(block)]
        self.living[taken.id] = (taken, needed)

    def renew(self, ttl: int) -> None:
        for each in self.living:
            live = each in self.holds()
            with contextlib.ExitStack() as stack:
                if not live:
                    stack.enter_context(pytest.raises(Refused, match="lost"))
                connection = stack.enter_context(self.database.write())
                held = ReadHolds(connection).renew(each, ttl * SECOND, Instant(self.now))
                assert held.expires is not None
                assert held.expires >= max(self.now + ttl * SECOND, self.living[each][0].expires or 0)
                self.living[each] = (held, self.living[each][1])

    def release(self, number: int) -> None:
        name = f"h{number}"
        live = name in self.holds()
        with contextlib.ExitStack() as stack:
            if not live:
                stack.enter_context(pytest.raises(NotFound))
            connection = stack.enter_context(self.database.write())
            ReadHolds(connection).release(name, Instant(self.now))
            self.living[name] = GONE

    def give_up(self, keep: int, *, delete: bool = False) -> None:
        found = self.blocks()
        if len(found) <= keep and not delete:
            return
        held = bool(self.holds())
        with contextlib.ExitStack() as stack:
            if held:
                oldest = min(self.holds(), key=lambda each: (self.living[each][0].taken, each))
                stack.enter_context(pytest.raises(HistoryHeld, match=f"reader: {oldest} "))
            if delete:
                self.chains.drop(D)
            else:
                expected = Head(found[-1].hash, found[-1].sequence_number)
                self.chains.rewrite(Rewrite(dataset=D, expected=expected, keep=keep))
        if not held:
            self.swept()
        else:
            assert [block.hash for block in self.blocks()] == [block.hash for block in found]

    def die(self, step: int) -> None:
        """In the middle of a reset, or idle."""
        before = self.blocks()
        self.dies_at = [*STEPS, ""][step]
        with contextlib.suppress(Died):
            self.give_up(1)
        self.dies_at = ""
        if self.blocks() != before:
            self.swept()
        self.database.close()
        self.open()

    def check(self) -> None:
        with self.database.read() as connection:
            assert sorted(held.id for held in ReadHolds(connection).all(Instant(self.now))) == sorted(self.holds())
        for each in self.holds():
            hold, needed = self.living[each]
            self.chains.chain(D).block_by_hash(hold.block)
            assert all(self.objects.has(name) for name in needed)


@contextlib.contextmanager
def opened() -> Iterator[Store]:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        yield store
        store.database.close()


@pytest.mark.slow
@given(st.lists(_STEP, max_size=15))
def test_what_is_held_stays_and_what_is_not_may_go(steps: list[tuple[str, int]]) -> None:
    """Attack T-REPO-02: an owner rewrites or deletes history while a reader uses it.

    Defence: a reader takes a hold (a lease); while one lives, a transaction that gives up history is refused.
    """
    with opened() as store:
        store.append()
        for kind, number in steps:
            match kind:
                case "append":
                    store.append()
                case "take":
                    store.take(number)
                case "renew":
                    store.renew(number)
                case "release":
                    store.release(number)
                case "tick":
                    store.now += number * SECOND
                case "reset":
                    store.give_up(number)
                case "delete":
                    store.give_up(0, delete=True)
                case "die":
                    store.die(number)
                case _:
                    collect(store.chains, store.objects)
                    with store.database.write() as connection:
                        ReadHolds(connection).sweep(Instant(store.now))
                    store.swept()
            store.check()


@pytest.mark.slow
def test_holds_are_bounded_in_number_and_in_time() -> None:
    """Attack T-REPO-02: holds that are never released.

    Defence: they expire after a day at most, and their number is bounded.
    """
    with opened() as store:
        store.append()
        for _ in range(MAX_OF_DATASET):
            store.take(20)
        with pytest.raises(Refused, match="too many holds"):
            store.take(20)
        store.now += 20 * SECOND
        store.take(20)  # those that expired make room
        for ttl in (0, 86_401):
            with pytest.raises(Invalid, match="seconds"):
                store.take(ttl)


def test_a_damaged_row_holds_until_it_is_released() -> None:
    with opened() as store:
        store.append()
        store.append()
        store.take(1)
        with store.database.write() as connection:
            connection.execute("UPDATE read_holds SET expires = 0")
        store.now += 86_400 * SECOND
        with pytest.raises(HistoryHeld, match="until it is released"):
            store.chains.drop(D)
        with store.database.write() as connection:
            assert ReadHolds(connection).sweep(Instant(store.now)) == 0
            with pytest.raises(Refused, match="damaged"):
                ReadHolds(connection).renew("h0", SECOND, Instant(store.now))
            ReadHolds(connection).release("h0", Instant(store.now))
        store.chains.drop(D)


def test_a_hold_that_expired_before_history_went_lives_no_more_when_the_clock_goes_back() -> None:
    with opened() as store:
        store.append()
        store.append()
        store.take(1)
        store.now += 2 * SECOND
        store.give_up(1)
        store.now -= 2 * SECOND
        store.check()
        store.renew(1)
