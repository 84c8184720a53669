"""Lanes: fair between blocks of addresses, in one between senders, in order within one; bounded."""

from __future__ import annotations

from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st

from p2p.machines.lanes import Lanes

BLOCKS = dict(zip("abcde", "xxxyz", strict=True))
SENT = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 50)), max_size=60)


@given(SENT, st.integers(1, 30), st.integers(50, 400))
def test_each_sender_is_served_in_order_and_in_turn(sent: list[tuple[str, int]], most: int, most_bytes: int) -> None:
    lanes = Lanes[str, tuple[str, int]](most, most_bytes)
    sizes: dict[tuple[str, int], int] = {}
    kept: defaultdict[str, list[int]] = defaultdict(list)
    for number, (sender, size) in enumerate(sent):
        item = (sender, number)
        sizes[item] = size
        kept[sender].append(number)
        before = {each: sum(sizes[each, n] for n in kept[each]) for each in kept}
        for dropped in lanes.put("block", sender, item, size):
            assert before[dropped[0]] == max(before.values()), "the heaviest makes room"
            assert kept[dropped[0]].pop() == dropped[1], "and its newest goes"
            before[dropped[0]] -= sizes[dropped]
        assert len(lanes) <= most
        assert sum(before.values()) <= most_bytes
    taken: defaultdict[str, list[int]] = defaultdict(list)
    turns = Counter[str]()
    while (item := lanes.take()) is not None:
        taken[item[0]].append(item[1])
        turns[item[0]] += 1
        waiting = {sender for sender in kept if len(kept[sender]) > turns[sender]}
        assert all(turns[item[0]] <= turns[sender] + 1 for sender in waiting), "nobody goes twice before another once"
    assert {sender: numbers for sender, numbers in kept.items() if numbers} == taken
    assert not len(lanes)


@given(SENT, st.randoms(use_true_random=False))
def test_who_leaves_leaves_nothing(sent: list[tuple[str, int]], rng: object) -> None:
    lanes = Lanes[str, tuple[str, int]](1000, 1 << 20)
    items = [(sender, number) for number, (sender, _) in enumerate(sent)]
    for item, (sender, size) in zip(items, sent, strict=True):
        assert lanes.put(BLOCKS[sender], sender, item, size) == []
    rng.shuffle(items)  # type: ignore[attr-defined]
    for item in items:
        lanes.remove(BLOCKS[item[0]], item[0], item)
        lanes.remove(BLOCKS[item[0]], "nobody", item)
        lanes.remove("nowhere", item[0], item)
    assert lanes.take() is None
    assert (len(lanes), lanes._bytes) == (0, 0)


@given(st.integers(1, 200), st.integers(1, 3), st.integers(6, 60), st.booleans())
def test_keys_of_one_block_buy_neither_turns_nor_room(keys: int, each: int, most: int, crowd_first: bool) -> None:
    """Of one block any number of keys, of another one sender with three items."""
    lanes = Lanes[str, str](most, 1 << 20)
    honest = [("honest", "h", f"h{number}") for number in range(3)]
    crowd = [("crowd", f"key{number % keys}", "k") for number in range(keys * each)]
    order = crowd + honest if crowd_first else honest + crowd
    dropped = [item for block, sender, said in order for item in lanes.put(block, sender, said, 10)]
    assert not [item for item in dropped if item != "k"], "who sends little loses nothing"
    turns = [lanes.take() for _ in range(min(most, 6))]
    waiting = min(3, len(crowd) - len(dropped))
    assert sum(item == "k" for item in turns[: 2 * waiting]) == waiting, "every second turn, and no more"
