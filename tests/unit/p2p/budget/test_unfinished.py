"""What all leave unfinished is bounded, and more keys make the block of addresses that they are in the heavier one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2p.budget.unfinished import Unfinished


def test_the_heaviest_of_the_heaviest_block_lets_go() -> None:
    share = Unfinished[str](100)
    for number in range(10):
        assert share.note(f"free{number}", "198.51", 6 + (number == 7)) is None
    assert share.note("honest", "203.0", 30) is None
    assert share.note("another", "192.0", 20) == "free7", "not the one who holds most of all"


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=80))
def test_prop_it_never_holds_more_than_allowed(steps: list[tuple[int, int]]) -> None:
    share, held = Unfinished[int](100), dict[int, int]()
    for holder, amount in steps:
        held[holder] = amount
        while (loser := share.note(holder, str(holder % 3), amount)) is not None:
            share.leave(loser)
            del held[loser]
            if loser == holder:
                break
        assert share.total == sum(held.values()) <= 100
