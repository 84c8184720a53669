"""Whoever wants a dataset stays connected with some that serve it, at a bounded price."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from chain.ids import DatasetId
from p2p.machines.holder_connections import ENOUGH, HolderConnections, Meet

STEP = 5.0


def named(number: int) -> DatasetId:
    return DatasetId.from_public_key(number.to_bytes(32, "big"))


class World:
    """``serving``: of each dataset those connected, and those who would come."""

    def __init__(self, wanted: Sequence[DatasetId]) -> None:
        self.wanted = wanted
        self.holders = HolderConnections()
        self.connected: Counter[DatasetId] = Counter()
        self.others: Counter[DatasetId] = Counter()
        self.met: list[tuple[float, Meet]] = []
        self.now = 0.0

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += STEP
            meet = self.holders.step(self.wanted, self.connected.__getitem__, self.now)
            if meet is not None:
                self.met.append((self.now, meet))
                new = min(meet.most, self.others[meet.dataset])
                self.others[meet.dataset] -= new
                self.connected[meet.dataset] += new
                if new:
                    self.holders.note_met(meet.dataset, self.connected[meet.dataset])


def test_two_are_kept_and_others_met_at_once_when_they_go() -> None:
    one = named(1)
    world = World([one])
    world.others[one] = 100
    world.run(STEP)
    assert world.connected[one] == ENOUGH
    world.run(600)
    world.connected[one] = 0
    world.run(STEP)
    assert world.connected[one] == ENOUGH


def test_another_is_met_now_and_then_though_two_are_there() -> None:
    """They may follow each other alone, or be strangers who say that they serve everything."""
    one = named(1)
    world = World([one])
    world.connected[one], world.others[one] = 2, 1000
    world.run(36_000)
    assert {meet.most for _, meet in world.met} == {1}
    assert 20 <= len(world.met) <= 30, "half an hour apart, in the end"


def test_looking_for_who_is_not_there_becomes_rare_and_stops_never() -> None:
    one = named(1)
    world = World([one])
    world.run(36_000)
    assert 115 <= len(world.met) <= 130, "five minutes apart, where nobody serves it"
    world.connected[one] = 1
    world.run(36_000)
    assert 15 <= len(world.met) - 122 <= 30, "and half an hour, where one does"


def test_ten_thousand_datasets_cost_no_more_than_one_attempt_a_step_and_all_have_their_turn() -> None:
    wanted = [named(number) for number in range(2000)]
    world = World(wanted)
    world.run(4 * 2000 * STEP)
    assert len(world.met) <= 4 * 2000
    tried = Counter(meet.dataset for _, meet in world.met)
    assert min(tried[each] for each in wanted) >= 2
