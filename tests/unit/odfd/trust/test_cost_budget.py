"""Engine time of a validator: shared by publishers, bounded by step, given up with growing pauses and told."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chain import instant
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.statements.keys import SigningKey
from odfd.trust.validation.validator import FIRST_PAUSE, HALF_LIFE, MAX_PAUSE, CostBudget

NOW = instant.parse("2026-11-20T09:00:00Z")


def key(number: int) -> SigningKey:
    return SigningKey(number.to_bytes(32, "big"))


def dataset(number: int) -> DatasetId:
    return key(1000 + number).dataset_id


def publisher(number: int) -> KeyDid:
    return key(number).did


def later(nanoseconds: int) -> Instant:
    return Instant(NOW + nanoseconds)


def test_pauses_double_up_to_a_week() -> None:
    costs, now, lengths = CostBudget(), NOW, []
    for _ in range(14):
        pause = costs.exceeded(dataset(1), publisher(1), 7, now)
        lengths.append(pause.length)
        assert costs.wait(dataset(1), now) == pause.length / instant.SECOND
        now = Instant(pause.until)
        assert not costs.wait(dataset(1), now)
    assert lengths[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert lengths[-1] == MAX_PAUSE
    assert costs.exceeded(dataset(1), publisher(1), 8, now).length == FIRST_PAUSE, "another step is another matter"


def test_steps_of_who_exceeded_run_apart_until_one_was_run() -> None:
    costs = CostBudget()
    costs.isolate(dataset(1), publisher(1))
    assert costs.is_isolated(publisher(1))
    assert not costs.is_isolated(publisher(2))
    costs.met(dataset(2))
    assert costs.is_isolated(publisher(1))
    costs.met(dataset(1))
    assert not costs.is_isolated(publisher(1))


def test_what_was_used_is_forgotten_by_halves() -> None:
    costs = CostBudget()
    costs.charge(publisher(1), 100.0, NOW)
    assert costs.used(publisher(1), later(HALF_LIFE)) == 50.0
    assert costs.used(publisher(1), later(-HALF_LIFE)) == 100.0, "a clock that goes back makes nobody pay more"


@pytest.mark.slow
@given(st.lists(st.integers(1, 30), min_size=2, max_size=5), st.integers(1, 40))
@example([1, 1], 1)
def test_no_publisher_gets_more_than_a_step_beyond_another(costs_of: list[int], datasets: int) -> None:
    """Whatever steps cost and however many datasets one has: all who wait get alike, but for one step."""
    budget = CostBudget()
    waiting = [(dataset(number), publisher(number)) for number in range(1, len(costs_of) + 1)]
    waiting += [(dataset(100 + number), publisher(1)) for number in range(datasets)]
    used = dict.fromkeys(range(1, len(costs_of) + 1), 0)
    number_of = {publisher(number): number for number in used}
    owner = dict(waiting)
    for _ in range(200):
        chosen = budget.next(waiting, NOW)
        assert chosen is not None
        number = number_of[owner[chosen]]
        used[number] += costs_of[number - 1]
        budget.charge(owner[chosen], costs_of[number - 1], NOW)
    assert max(used.values()) - min(used.values()) <= max(costs_of)
