"""Mirrors of shards and across handovers in seeded worlds: heads and cards come late, twice, in any order or never.

A publisher writes transactions, makes renditions of one or several shards, and hands over between them, also back. A
mirror decides with the node's own functions what to mirror and when its name means another rendition. Its reader
accumulates updates and differences, and at each time has what the publisher had at that time, whole transactions only.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from chain.ids import DatasetId
from chain.instant import SECOND, Instant, from_millis
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.envelope import Signed
from chain.statements.keys import SigningKey
from chain.statements.statement import HeadStatement
from chain.store.shards import Shard, View
from odfd.datasets.shard_reading import is_followed
from odfd.mirrors import mirror_handover
from odfd.mirrors.mirror_handover import Await, Begin, Step, next_step, united
from odfd.renditions.reader_position import ContentDifference, Updates, next_reading
from odfd.renditions.successor import HandoverNotice
from odfd.renditions.timeline import RenditionRow, Switch, Timeline, active, advance, append
from odfd.store.collections import CollectionState, Member, plain
from odfd.trust.admission.rules import AdmissionOutcome, admit_head
from sim.kernel import batches, named

Row = tuple[int, int]
"""Its number, and the decoding."""
NOTHING = HandoverNotice(DatasetId.from_public_key(bytes(32)), 0, Multihash.sha3_256(b""))


@dataclass(frozen=True)
class Block:
    time: int
    rows: frozenset[Row] = frozenset()
    notice: HandoverNotice | None = NOTHING
    """What the description says after it; ``NOTHING``: as before."""


@dataclass
class Rendition:
    shards: list[DatasetId]
    decoding: int
    blocks: list[list[Block]] = field(default_factory=list)
    uppers: list[int] = field(default_factory=list)

    def append(self, time: int, rows: set[int]) -> None:
        """One transaction: shards without rows get no block, and all are complete past it if there are several."""
        for place, own in enumerate(self.blocks):
            mine = frozenset((row, self.decoding) for row in rows if row % len(self.shards) == place)
            if mine or not own:
                own.append(Block(time, mine))
            self.uppers[place] = time + (len(self.shards) > 1)

    def say(self, time: int, notice: HandoverNotice | None) -> None:
        for place, own in enumerate(self.blocks):
            own.append(Block(time, notice=notice))
            self.uppers[place] = max(self.uppers[place], time + (len(self.shards) > 1))

    def run_on(self, until: int) -> None:
        self.uppers = [max(each, until) for each in self.uppers]

    def contents(self, time: int) -> set[Row]:
        return {row for own in self.blocks for block in own if block.time <= time for row in block.rows}


class Publisher:
    def __init__(self, chance: random.Random) -> None:
        self._chance, self._ids = chance, itertools.count(1)
        self.time = 10
        self.rows: dict[int, int] = {0: 10}
        self.renditions: list[Rendition] = []
        self.make(chance.randint(1, 3), 0)
        self.active = 0
        self.switches = [(0, 0)]
        self.copied = [0]
        """How many rows each rendition has."""

    def make(self, count: int, decoding: int) -> None:
        ids = [DatasetId.from_public_key(next(self._ids).to_bytes(32, "big")) for _ in range(count)]
        made = Rendition(ids, decoding, [[] for _ in ids], [0 for _ in ids])
        made.append(self.time, set(self.rows))
        self.renditions.append(made)

    def act(self) -> None:
        self.time += self._chance.randint(1, 9)
        what = self._chance.random()
        if what < 0.7:
            number = len(self.rows)
            now = {number, number + 1} if self._chance.random() < 0.4 else {number}
            self.rows |= dict.fromkeys(now, self.time)
            self.renditions[self.active].append(self.time, now)
            self.copied[self.active] = len(self.rows)
        elif what < 0.85 and len(self.renditions) < 6:
            decoding = len(self.renditions) if self._chance.random() < 0.3 else self.renditions[self.active].decoding
            self.renditions[self.active].run_on(self.time + 1)
            self.make(self._chance.randint(1, 3), decoding)
            self.copied.append(len(self.rows))
            self.time += 1
        elif len(self.renditions) > 1:
            self.hand_over(self._chance.choice([n for n in range(len(self.renditions)) if n != self.active]))

    def hand_over(self, to: int) -> None:
        old, new, time = self.renditions[self.active], self.renditions[to], self.time
        left = list(self.rows.items())[self.copied[to] :]
        for at, group in itertools.groupby(left, key=lambda item: item[1]):
            new.append(at, {row for row, _ in group})
        block = _name(new.shards[0], len(new.blocks[0]) - 1)
        ended = any(each.notice is not NOTHING and each.notice is not None for each in new.blocks[0])
        old.say(time, HandoverNotice(new.shards[0], time, block, len(old.shards), len(new.shards)))
        if ended:
            new.say(time, None)
        new.run_on(time + 1)
        self.copied[to] = self.copied[self.active] = len(self.rows)
        self.active = to
        self.switches.append((time, to))
        self.time += 1

    def rendition_of(self, shard: DatasetId) -> tuple[Rendition, int]:
        return next((each, each.shards.index(shard)) for each in self.renditions if shard in each.shards)


def _name(shard: DatasetId, number: int) -> Multihash:
    return Multihash.sha3_256(shard + number.to_bytes(4, "big"))


class Mirror:
    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        first = publisher.renditions[0].shards[0]
        self.state: CollectionState = plain(first)
        self.mirrors = {first}
        self.here: dict[DatasetId, tuple[int, int]] = {}
        """Blocks and frontier of each chain."""
        self.after, self.rows = -1, set[Row]()

    def fetch(self, shard: DatasetId, head: tuple[int, int]) -> None:
        self.here[shard] = max(head, self.here.get(shard, (0, 0)))

    def learn(self, first: DatasetId) -> None:
        """A card came: the other shards are mirrored, and read with the first when all are here."""
        rendition, place = self.publisher.rendition_of(first)
        if place or len(rendition.shards) < 2 or first not in self.mirrors:
            return
        self.mirrors.update(rendition.shards)
        number = self.state.number_of(first)
        if len(self.state.member(number).shards) == 1 and all(each in self.here for each in rendition.shards):
            state = united(self.state, tuple(rendition.shards), ("n",))
            assert state is not None
            self.state = state

    def decide(self) -> Step:
        """One step, as after any restart: it depends on what is stored alone."""
        notice = self._notice()
        uppers = {each: self._upper(each) for each in self.here}
        has = notice is not None and notice.block in {
            _name(notice.to, number) for number in range(len(self._blocks(notice.to)))
        }
        return self.step(notice, uppers, has)

    def _notice(self) -> HandoverNotice | None:
        chain = self._blocks(self.state.active.dataset)
        return next((each.notice for each in reversed(chain) if each.notice is not NOTHING), None)

    def step(self, notice: HandoverNotice | None, uppers: dict[DatasetId, int], has: bool) -> Step:
        return next_step(self.state, notice, uppers, has_block=has)

    def follow(self) -> None:
        while True:
            step = self.decide()
            if isinstance(step, Begin):
                number = len(self.state.members)
                row = RenditionRow(number=number, shards=(str(step.to),))
                members = (*self.state.members, Member(row=row, origin="owner"))
                self.state = msgspec.structs.replace(self.state, members=members)
                self.mirrors.add(step.to)
            elif isinstance(step, mirror_handover.Cross):
                notice = self._notice()
                assert notice is not None
                timeline = append(self.state.timeline, Switch(notice.time, str(notice.time), step.member.row))
                self.state = msgspec.structs.replace(self.state, timeline=timeline)
            else:
                return

    def read(self) -> None:
        """The reader goes on as far as it can; it has whole transactions of the publisher at each of its times."""
        uppers = {each.row.number: min(map(self._upper, each.shards)) for each in self.state.members}
        for switch in self.state.timeline.switches[1:]:  # as the node: what was followed was complete
            uppers[switch.to.number] = max(uppers[switch.to.number], switch.time + 1)
        timeline = advance(self.state.timeline, self.known(uppers[self.state.active.row.number]))
        if not self._is_readable():
            return
        while True:
            match next_reading(self.after, timeline, uppers):
                case Updates(rendition=number, until=until):
                    self.rows |= self._contents(number, until - 1)
                    self.after = until - 1
                case ContentDifference(time=time, old=old, old_time=before, new=new):
                    assert self.rows == self._contents(old, before)
                    self.rows = self._contents(new, time)
                    self.after = time
                case _:
                    break
            self.check(timeline)

    def known(self, upper: int) -> int:
        """How far it knows its active rendition to be that: up to a handover that is not followed yet."""
        notice = self._notice()
        return upper if notice is None or is_followed(self.state, notice) else min(upper, notice.time)

    def _is_readable(self) -> bool:
        """The name of a collection is refused until its shards are united."""
        first = self.state.active.dataset
        rendition, _ = self.publisher.rendition_of(first)
        return len(self.state.active.shards) == len(rendition.shards)

    def check(self, timeline: Timeline) -> None:
        row = active(timeline, self.after)
        rendition, _ = self.publisher.rendition_of(DatasetId.parse(row.shards[0]))
        assert self.rows == rendition.contents(self.after), "a transaction was read in part"
        read = sorted(number for number, _ in self.rows)
        written = sorted(row for row, time in self.publisher.rows.items() if time <= self.after)
        assert read == written, "each row that its publisher had then, once"
        numbers = {str(each.shards[0]): number for number, each in enumerate(self.publisher.renditions)}
        crossed = [(each.time, numbers[each.to.shards[0]]) for each in self.state.timeline.switches]
        assert set(crossed) <= set(self.publisher.switches), "it crossed at another time than its publisher"

    def _blocks(self, shard: DatasetId) -> list[Block]:
        rendition, place = self.publisher.rendition_of(shard)
        return rendition.blocks[place][: self.here.get(shard, (0, 0))[0]]

    def _upper(self, shard: DatasetId) -> int:
        blocks = self._blocks(shard)
        return max(blocks[-1].time if blocks else 0, self.here.get(shard, (0, 0))[1])

    def _contents(self, number: int, time: int) -> set[Row]:
        shards = self.state.member(number).shards
        return {row for each in shards for block in self._blocks(each) if block.time <= time for row in block.rows}


class ByBlock(Mirror):
    """Crosses as soon as the successor's first shard has the block."""

    def step(self, notice: HandoverNotice | None, uppers: dict[DatasetId, int], has: bool) -> Step:
        step = super().step(notice, uppers, has)
        if isinstance(step, Await) and has and notice is not None:
            member = next(each for each in self.state.members if each.dataset == notice.to)
            return mirror_handover.Cross(member)
        return step


class Leaving(Mirror):
    """Crosses when the new rendition is complete, and the old one perhaps not."""

    def step(self, notice: HandoverNotice | None, uppers: dict[DatasetId, int], has: bool) -> Step:
        return super().step(notice, uppers | dict.fromkeys(self.state.active.shards, 10**9), has)

    def read(self) -> None:
        """A new reader begins where the collection is now."""
        here = [self._upper(each) for each in self.state.active.shards]
        for switch, before in zip(self.state.timeline.switches[1:], self.state.timeline.switches[:-1], strict=True):
            old = self.state.member(before.to.number).shards
            assert all(self._upper(each) >= switch.time for each in old), "nobody who reads it can cross"
        assert here


class Beyond(Mirror):
    """Reads on in a rendition that has ended: what was copied into it for the way back."""

    def known(self, upper: int) -> int:
        return upper


def lived(seed: int, kind: type[Mirror] = Mirror) -> tuple[Publisher, Mirror]:
    chance = random.Random(seed)
    publisher = Publisher(chance)
    mirror = kind(publisher)
    heads: dict[DatasetId, list[tuple[int, int]]] = {}
    for _ in range(60):
        if chance.random() < 0.5:
            publisher.act()
        for each in publisher.renditions:
            for shard, blocks, upper in zip(each.shards, each.blocks, each.uppers, strict=True):
                heads.setdefault(shard, []).append((len(blocks), upper))
        for shard in chance.sample(sorted(mirror.mirrors), min(2, len(mirror.mirrors))):
            mirror.fetch(shard, chance.choice(heads[shard][-9:]))
        mirror.learn(chance.choice(sorted(mirror.mirrors)))
        mirror.follow()
        mirror.read()
    for _ in range(20):
        for shard in sorted(mirror.mirrors):
            mirror.fetch(shard, heads[shard][-1])
            mirror.learn(shard)
        mirror.follow()
        mirror.read()
    return publisher, mirror


@pytest.mark.parametrize("seeds", batches(13), ids=str)
def test_every_order_of_arrival_crosses_at_the_time_of_the_publisher(seeds: range) -> None:
    """Attack T-HEAD-04: a switch of renditions that a mirror sees in part: one shard taken for all, or a transaction in
    some of them.

    Defence: the notice says how many shards there are; the name stays with the old rendition until both are complete to
    the switch in all shards.
    """
    for seed in seeds:
        with named(seed):
            publisher, mirror = lived(seed)
            last = publisher.renditions[publisher.active]
            assert mirror.state.active.shards == tuple(last.shards)
            assert mirror.rows == last.contents(mirror.after)
            assert mirror.after >= publisher.switches[-1][0]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [ByBlock, Leaving, Beyond])
def test_a_mirror_that_crosses_too_early_is_caught(kind: type[Mirror]) -> None:
    caught = 0
    for seed in range(60):
        try:
            lived(seed, kind)
        except AssertionError:
            caught += 1
    assert caught


# Mirrors of shards in a seeded world: heads come late, twice, in any order or never, and every cut is the
# publisher's.
# The publisher writes transactions of which some shards get blocks and all get a signed head. A mirror admits heads
# by the node's own rule, fetches blocks up to the newest head it knows, and keeps the frontier that the head
# states. What it reads, at the last time complete in all shards, must be what the publisher had written up to that
# time.

NOW = Instant(1_800_000_000 * SECOND)
TAKEN = (AdmissionOutcome.ADVANCE, AdmissionOutcome.RENEWED)


class CutPublisher:
    """Some shards that are written together; every third transaction is a mere promise."""

    def __init__(self, random_: random.Random, shards: int) -> None:
        self._random = random_
        self.keys = [SigningKey(bytes([place + 1]) * 32) for place in range(shards)]
        self.times: list[list[int]] = [[1] for _ in range(shards)]
        self.time = 1
        self.heads: list[tuple[int, HeadStatement, Signed]] = []

    def write(self) -> None:
        self.time += self._random.randint(1, 1500)
        written = self._random.random() < 0.7
        for times in self.times:
            if written and self._random.random() < 0.4:
                times.append(self.time)
        for place in range(len(self.times)):
            head = self._head(place)
            sealed = envelope.seal(statement.encode(head), self.keys[place])
            self.heads.append((place, head, envelope.unseal(sealed, head.MAX_ENVELOPE)))

    def _head(self, place: int) -> HeadStatement:
        size = len(self.times[place])
        issued = Instant(NOW + self.time * SECOND // 1000)
        return HeadStatement(
            dataset=self.keys[place].dataset_id,
            epoch=0,
            size=size,
            root_hash=bytes([size % 256]) * 32,
            authority=0,
            issued_at=statement.when(issued),
            expires_at=statement.when(Instant(issued + 86_400 * SECOND)),
            upper=self.time + 1,
            collection=self.keys[0].dataset_id,
            head=Multihash.sha3_256(b"%d" % size),
        )

    def cut(self, time: int) -> list[int]:
        """The number of blocks of each shard up to a time."""
        return [sum(each <= time for each in times) for times in self.times]


class CutMirror:
    def __init__(self, publisher: CutPublisher) -> None:
        self._publisher = publisher
        self._newest: list[HeadStatement | None] = [None for _ in publisher.times]
        self._sizes = [0 for _ in publisher.times]
        self._uppers = [0 for _ in publisher.times]

    def hear(self, place: int, head: HeadStatement, signed: Signed) -> None:
        verdict = admit_head(head, signed, self._newest[place], lambda _: None, Instant(NOW + 10**6 * SECOND))
        if verdict.outcome in TAKEN:
            self._newest[place] = head

    def fetch(self, place: int) -> None:
        """As a pass of the node's: blocks up to the newest head, and then the frontier that it states."""
        head = self._newest[place]
        if head is not None:
            self._sizes[place] = max(self._sizes[place], head.size)
            if head.size == self._sizes[place]:
                self._uppers[place] = max(self._uppers[place], head.upper or 0)

    def read(self) -> tuple[int, list[int]]:
        """The last complete time, and the blocks up to it."""
        uppers = []
        for place, size in enumerate(self._sizes):
            last = self._publisher.times[place][size - 1] if size else 0
            uppers.append(max(last, self._uppers[place]))
        time = min(uppers) - 1
        return time, [self._view(place).size_at(time) for place in range(len(self._sizes))]

    def _view(self, place: int) -> View:
        times, size = self._publisher.times[place], self._sizes[place]
        head: Any = SimpleNamespace(size=size) if size else None
        return View(Shard(head, 0), lambda number: SimpleNamespace(system_time=from_millis(times[number])))  # type: ignore[arg-type,return-value]


class HastyCuts(CutMirror):
    """Reads all blocks that are here, up to the newest of them."""

    def read(self) -> tuple[int, list[int]]:
        times = [self._publisher.times[place][size - 1] for place, size in enumerate(self._sizes) if size]
        return max(times, default=-1), self._sizes


def lived_cuts(seed: int, kind: type[CutMirror] = CutMirror) -> None:
    chance = random.Random(seed)
    publisher = CutPublisher(chance, chance.randint(2, 5))
    mirror, last = kind(publisher), -1
    for _ in range(25):
        if chance.random() < 0.4:
            publisher.write()
        for _ in range(chance.randint(0, 3)):
            if publisher.heads:
                mirror.hear(*chance.choice(publisher.heads[-12:]))
        mirror.fetch(chance.randrange(len(publisher.times)))
        time, sizes = mirror.read()
        assert time >= last, "a frontier went back"
        assert sizes == publisher.cut(time) or time < 1
        last = time
    publisher.write()
    for each in publisher.heads:
        mirror.hear(*each)
    for place in range(len(publisher.times)):
        mirror.fetch(place)
    assert mirror.read() == (publisher.time, [len(times) for times in publisher.times])


@pytest.mark.parametrize("seeds", batches(7), ids=str)
def test_every_cut_of_a_mirror_is_one_of_its_publisher(seeds: range) -> None:
    for seed in seeds:
        with named(seed):
            lived_cuts(seed)


@pytest.mark.nightly
def test_a_mirror_that_reads_what_is_here_is_caught() -> None:
    for seed in range(30):
        with pytest.raises(AssertionError):
            lived_cuts(seed, HastyCuts)
