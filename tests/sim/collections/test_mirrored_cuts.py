"""Mirrors of shards in a seeded world: heads come late, twice, in any order or never, and every cut is the publisher's.

The publisher writes transactions of which some shards get blocks and all get a signed head. A mirror admits heads by
the node's own rule, fetches blocks up to the newest head it knows, and keeps the frontier that the head states. What it
reads, at the last time complete in all shards, must be what the publisher had written up to that time.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from chain.instant import SECOND, Instant, from_millis
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.envelope import Signed
from chain.statements.keys import SigningKey
from chain.statements.statement import HeadStatement
from chain.store.shards import Shard, View
from odfd.trust.admission.rules import AdmissionOutcome, admit_head
from sim.kernel import batches, named

NOW = Instant(1_800_000_000 * SECOND)
TAKEN = (AdmissionOutcome.ADVANCE, AdmissionOutcome.RENEWED)


class Publisher:
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


class Mirror:
    def __init__(self, publisher: Publisher) -> None:
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


class Hasty(Mirror):
    """Reads all blocks that are here, up to the newest of them."""

    def read(self) -> tuple[int, list[int]]:
        times = [self._publisher.times[place][size - 1] for place, size in enumerate(self._sizes) if size]
        return max(times, default=-1), self._sizes


def lived(seed: int, kind: type[Mirror] = Mirror) -> None:
    chance = random.Random(seed)
    publisher = Publisher(chance, chance.randint(2, 5))
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
            lived(seed)


@pytest.mark.nightly
def test_a_mirror_that_reads_what_is_here_is_caught() -> None:
    for seed in range(30):
        with pytest.raises(AssertionError):
            lived(seed, Hasty)
