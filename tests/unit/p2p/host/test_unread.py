"""The bound on unread bytes of all connections together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2p.host.limits import UnreadBudget


class Connection:
    """Streams by their unread bytes."""

    def __init__(self, budget: UnreadBudget) -> None:
        self.streams: list[int] = []
        self.lost = 0
        self.budget = budget
        budget.join(self)

    @property
    def unread(self) -> int:
        return sum(self.streams)

    def shed(self) -> None:
        if self.streams:
            self.lost += max(self.streams)
            self.streams.remove(max(self.streams))

    def hear(self, size: int) -> None:
        self.streams.append(size)
        self.budget.grew(self)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 60), st.booleans()), max_size=60))
def test_the_sum_is_never_more_and_who_holds_most_pays(steps: list[tuple[int, int, bool]]) -> None:
    budget = UnreadBudget(100)
    connections = [Connection(budget) for _ in range(5)]
    for number, size, reads in steps:
        one = connections[number]
        if reads:
            one.streams.clear()
            continue
        before = [each.unread for each in connections]
        before[number] += size
        losses = [each.lost for each in connections]
        one.hear(size)
        assert sum(each.unread for each in connections) <= 100
        paid = [each.lost > lost for each, lost in zip(connections, losses, strict=True)]
        if any(paid):
            assert sum(before) > 100, "nobody pays while there is room"
            assert paid[before.index(max(before))] or before.count(max(before)) > 1


def test_who_left_counts_no_more() -> None:
    budget = UnreadBudget(100)
    gone, here = Connection(budget), Connection(budget)
    gone.hear(90)
    budget.leave(gone)
    budget.grew(gone)
    here.hear(100)
    assert (here.lost, here.unread) == (0, 100)
    here.hear(1)
    assert (here.lost, here.unread) == (100, 1)
