"""Who came second lets others go on, and takes over when they stop: instances of any speed, which die anywhere."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Final

from hypothesis import given
from hypothesis import strategies as some

from odfd.reclock.standby import LEAST, MOST, Standby

WORK: Final = 40
SLOWEST: Final = 8.0
SPEEDS: Final = some.floats(0.001, SLOWEST)


class Race:
    """A commit point that counts steps, and instances that each take a time for one; all in virtual time."""

    def __init__(self, instances: int, speed: Callable[[int], float], chance: Callable[[], float]) -> None:
        self.speed, self.chance = speed, chance
        self.each = [Standby() for _ in range(instances)]
        self.alive = set(range(instances))
        self.done, self.second = 0, [0] * instances
        self.commits = [0.0]
        self._order = itertools.count()
        self._due: list[tuple[float, int, int, int | None]] = []
        for number in self.alive:
            self._at(0.0, number, None)

    def _at(self, time: float, number: int, began: int | None) -> None:
        heapq.heappush(self._due, (time, next(self._order), number, began))

    def run(self, work: int, deaths: Sequence[tuple[float, int]] = ()) -> None:
        while self.done < work:
            time, _, number, began = heapq.heappop(self._due)
            for at, dead in deaths:
                if at <= time and len(self.alive) > 1:
                    self.alive.discard(dead)
            if number not in self.alive:
                continue
            if began is None:
                seconds = self.each[number].pause(self.done, self.chance())
                if seconds is not None:
                    assert LEAST <= seconds <= 2 * MOST
                    self._at(time + seconds, number, None)
                    continue
                self._at(time + self.speed(number), number, self.done)
                continue
            if began == self.done:
                self.done += 1
                self.commits.append(time)
                self.each[number].came_first()
            else:
                self.second[number] += 1
                self.each[number].came_second(self.speed(number))
            self._at(time, number, None)

    @property
    def longest(self) -> float:
        """The longest time without progress."""
        return max(after - before for before, after in itertools.pairwise(self.commits))


@given(
    instances=some.integers(1, 4), data=some.data(),
    deaths=some.lists(some.tuples(some.floats(0, WORK * SLOWEST), some.integers(0, 3)), max_size=3),
)  # fmt: skip
def test_all_is_done_whoever_dies_and_hardly_anything_twice(
    instances: int, data: some.DataObject, deaths: list[tuple[float, int]]
) -> None:
    race = Race(instances, lambda _: data.draw(SPEEDS), lambda: data.draw(some.floats(0, 1)))
    race.run(WORK, sorted(deaths))
    # It was twice as long as the slowest step, or doubled once for each time that all were too early.
    patience = max(LEAST, 2 * SLOWEST) * 2 ** (len(deaths) + 1)
    assert race.longest <= SLOWEST + 2 * 2 * patience + SLOWEST
    doublings = math.ceil(math.log2(2 * SLOWEST / LEAST)) + 1
    assert max(race.second) <= (doublings + 1) * (len(deaths) + 1)


def test_of_two_of_one_speed_one_does_all_but_the_beginning() -> None:
    for speed in (0.001, 0.1, 1.0, 30.0):
        chances = itertools.cycle((0.1, 0.7, 0.4))
        race = Race(2, lambda _, speed=speed: speed, lambda chances=chances: next(chances))
        race.run(1_000)
        assert sum(race.second) <= 2


def test_a_slow_one_that_goes_on_is_not_taken_for_one_that_stopped() -> None:
    """Its steps are a hundred times as long as those of the other one, which is first as soon as it acts."""
    race = Race(2, lambda number: 0.01 if number else 1.0, lambda: 0.5)
    race.run(1_000)
    assert sum(race.second) <= 3


def test_all_that_stand_by_act_again_after_a_pause_without_progress() -> None:
    """So they never wait for each other."""
    both = [Standby(), Standby()]
    for each in both:
        each.came_second(0.0)
        assert each.is_on
        assert each.pause("as it is", 1.0) == 2 * LEAST
        assert each.pause("as it is", 1.0) is None


def test_patience_grows_with_each_step_that_was_too_early_and_ends_with_the_first_that_was_not() -> None:
    one = Standby()
    assert one.pause("a", 0.0) is None
    found = []
    for took in (0.0, 0.0, 3.0, 1_000.0):
        one.came_second(took)
        found.append(one.pause("a", 0.0))
    assert found == [LEAST, 2 * LEAST, 6.0, MOST]
    assert one.pause("b", 0.0) == MOST
    one.came_first()
    assert not one.is_on
