"""One node of the lookup: what it answers to whom, and what it has to do."""

from __future__ import annotations

from random import Random

import pytest

from chain.statements.keys import SigningKey
from p2p.lookup.node import (
    FEW,
    FIND_RATE,
    INTRODUCED,
    NEAREST,
    PAUSE,
    REPEAT,
    RETRY,
    SOON,
    STORE_RATE,
    Announce,
    Announcing,
    CheckContact,
    LookupNode,
    ProviderSearch,
    RecordPublication,
    Refresh,
)
from p2p.wire.contact import LookupContact, place_of
from p2p.wire.lookup import Find, Nodes, Store, StoreAnswer, StoreOutcome, seal_record
from p2p.wire.presence import Presence

WALL = 1_800_000_000_000
KEY = b"\7" * 32
ASKER = SigningKey(b"a" * 32)
IP = bytes([60, 1, 2, 3])


def at(number: int) -> LookupContact:
    return LookupContact(
        number.to_bytes(32, "big"), bytes([60 + number % 30, number // 30 % 256, number // 7680, 1]), 1
    )


def made(count: int = 0) -> LookupNode:
    node = LookupNode("net", b"m" * 32, Random(1), b"secret")
    for number in range(1, count + 1):
        node.note_answer(at(number), (), 0.0)
    node.table.settled = True
    return node


def record(key: bytes = KEY, signer: SigningKey = ASKER) -> bytes:
    said = Presence(key=signer.public, issued=WALL, lifetime=3600, addresses=("/ip4/60.1.2.3/tcp/4150",))
    return seal_record(said, "net", key, signer)


def test_what_one_brings_another_is_told() -> None:
    node = made()
    assert node.store(Store(key=KEY, record=record()), ASKER.public, IP, 0.0, WALL).outcome is StoreOutcome.KEPT
    answer = node.find(Find(key=KEY), b"x" * 32, IP, 0.0, WALL)
    assert answer is not None
    assert answer.records == (record(),)


def test_nobody_brings_what_another_signed() -> None:
    node = made()
    assert node.store(Store(key=KEY, record=record()), b"x" * 32, IP, 0.0, WALL).outcome is StoreOutcome.BAD


def test_who_asks_too_often_is_not_answered() -> None:
    node = made(30)
    finds = [node.find(Find(key=KEY), b"x" * 32, IP, 0.0, WALL) for _ in range(100)]
    assert sum(one is not None for one in finds) == FIND_RATE.burst
    stores = [
        node.store(Store(key=bytes([n]) * 32, record=record(bytes([n]) * 32)), ASKER.public, IP, 0.0, WALL).outcome
        for n in range(200)
    ]
    assert stores.count(StoreOutcome.BUSY) == 200 - STORE_RATE.burst
    assert node.refused == 100 - FIND_RATE.burst + 200 - STORE_RATE.burst
    assert node.find(Find(key=KEY), b"y" * 32, IP, 0.0, WALL) is not None, "others are"


@pytest.mark.slow
def test_a_key_far_away_is_kept_by_others() -> None:
    node = made(3000)
    far = max((bytes([n]) * 32 for n in range(256)), key=lambda key: place_of(key) ^ node.place)
    near = (node.place ^ 1).to_bytes(32, "big")
    refused = node.store(Store(key=far, record=record(far)), ASKER.public, IP, 0.0, WALL)
    assert refused.outcome is StoreOutcome.FAR
    assert all(one.place ^ place_of(far) < node.place ^ place_of(far) for one in refused.contacts), (
        "it names nearer ones"
    )
    assert node.store(Store(key=near, record=record(near)), ASKER.public, IP, 0.0, WALL).outcome is StoreOutcome.KEPT


def test_a_node_that_asks_is_noted_only_where_it_comes_from() -> None:
    """Else one question would send this node to knock at any address."""
    node = made()
    node.find(Find(key=KEY, own=(bytes([60, 9, 9, 9]), 1)), ASKER.public, IP, 0.0, WALL)
    assert node.work(0.0) is None
    node.find(Find(key=KEY, own=(IP, 4150)), ASKER.public, IP, 0.0, WALL)
    work = [node.work(float(now)) for now in range(10)]
    assert LookupContact(ASKER.public, IP, 4150) in [one.contact for one in work if isinstance(one, CheckContact)]


def test_a_newcomer_first_finds_its_neighbours() -> None:
    node = LookupNode("net", b"m" * 32, Random(1), b"s")
    assert node.work(0.0) is None
    node.table.suggest(at(1))
    assert node.work(1.0) == CheckContact(at(1), node.place)
    node.note_answer(at(1), (), 1.0)
    assert node.work(3.0) == Refresh(node.place)
    node.publication.want([KEY], 3.0)
    assert not isinstance(node.work(5.0), Announce), "nothing is announced before"
    search = node.search(node.place, 5.0)
    assert search.step(5.0) == [at(1)]
    search.note_answer(at(1), [])
    node.note_joined(search)
    assert node.work(6.0) == Announce(KEY)


def test_a_newcomer_asks_all_whom_it_knew_before_it_searches() -> None:
    """The first one lies: it names invented nodes only, which push the others out of the table's suggestions."""
    node = LookupNode("net", b"m" * 32, Random(1), b"s")
    for known in (1, 2, 3):
        node.introduce(at(known))
        node.introduce(at(known))
    assert node.work(1.0) == CheckContact(at(1), node.place)
    node.note_answer(at(1), [at(10_000 + number) for number in range(1000)], 1.5)
    assert [node.work(now) for now in (2.0, 3.0)] == [CheckContact(at(2), node.place), CheckContact(at(3), node.place)]
    assert node.work(4.0) == Refresh(node.place)


def test_nobody_is_introduced_for_ever() -> None:
    node = LookupNode("net", b"m" * 32, Random(1), b"s")
    for known in range(1, 100):
        node.introduce(at(known))
    asked = [node.work(float(now)) for now in range(1, INTRODUCED + 2)]
    assert set(asked[:-1]) == {CheckContact(at(known), node.place) for known in range(1, INTRODUCED + 1)}
    assert isinstance(asked[-1], CheckContact), "and then one after another until one answers"


def test_a_record_is_brought_in_the_search_to_the_region_and_after_it_to_others() -> None:
    node = made(3000)
    work = Announcing(node, KEY, 0.0)
    brought: list[LookupContact] = []
    while chosen := work.search.step(0.0):
        for contact in chosen:
            if work.is_brought_to(contact):
                brought.append(contact)
                work.note_answer(contact, StoreAnswer(outcome=StoreOutcome.KEPT))
            work.search.note_answer(contact, [at(number) for number in range(1, 3000, 7)])
    assert {*brought} == {one for one in work.search.choose(NEAREST) if work.is_brought_to(one)}
    assert work.keepers == len(brought)
    assert len(brought) + len(work.rest()) == max(NEAREST, len(brought))
    assert not {*brought} & {*work.rest()}


def test_a_search_that_nobody_answered_settles_nothing() -> None:
    node = LookupNode("net", b"m" * 32, Random(1), b"s")
    node.note_joined(node.search(node.place, 0.0))
    assert not node.table.settled


def test_idle_it_asks_little() -> None:
    node = made(500)
    asked = 0
    for second in range(7200):
        work = node.work(float(second))
        if isinstance(work, CheckContact):
            asked += 1
            node.note_answer(work.contact, (), float(second))
        elif isinstance(work, Refresh):
            asked += 30
            node.search(work.target, float(second))
    assert asked / 7200 < 0.4


def test_forged_records_are_found_out_and_spoil_what_their_teller_told() -> None:
    node = made(10)
    finding = ProviderSearch(node, KEY, 0.0)
    liar, other = finding.search.step(0.0)[:2]
    forged = record()[:-1] + b"\0"
    assert finding.take_answer(liar, Nodes(contacts=(at(99),), records=(forged,)), WALL) is None
    assert finding.forged == 1
    assert at(99) not in finding.search.step(0.0)
    assert finding.take_answer(other, Nodes(records=(record(),)), WALL) == [finding.providers[ASKER.public]]
    late = finding.search.step(0.0)[:1]
    assert all(finding.take_answer(one, Nodes(records=(record(),)), WALL) == [] for one in late), "once"


def test_an_expired_record_is_no_lie() -> None:
    node = made(10)
    finding = ProviderSearch(node, KEY, 0.0)
    keeper = finding.search.step(0.0)[0]
    assert finding.take_answer(keeper, Nodes(records=(record(),)), WALL + 3_600_001) == []
    assert not finding.forged


# What is announced


def test_what_is_new_is_announced_at_once_and_again_before_it_expires() -> None:
    publication = RecordPublication(Random(1))
    publication.want([KEY], 0.0)
    assert publication.take(0.0) == KEY
    assert publication.take(PAUSE) is None
    publication.note_announced(KEY, 5.0, FEW)
    assert publication.take(5.0 + 0.7 * REPEAT) is None
    assert publication.take(5.0 + REPEAT) == KEY


def test_what_reached_few_is_repeated_before_long() -> None:
    publication = RecordPublication(Random(1))
    publication.want([KEY], 0.0)
    publication.take(0.0)
    publication.note_announced(KEY, 0.0, FEW - 1)
    assert publication.take(SOON) == KEY


def test_what_reached_nobody_is_repeated_soon() -> None:
    publication = RecordPublication(Random(1))
    publication.want([KEY], 0.0)
    assert publication.take(0.0) == KEY
    assert publication.take(RETRY - 1) is None
    assert publication.take(RETRY) == KEY


def test_what_is_withdrawn_is_announced_no_more() -> None:
    publication = RecordPublication(Random(1))
    publication.want([KEY, b"o" * 32], 0.0)
    publication.want([b"o" * 32], 1.0)
    assert publication.take(2.0) == b"o" * 32
    publication.note_announced(KEY, 3.0, FEW)
    assert publication.take(4.0) is None
    assert len(publication) == 1


def test_many_are_announced_one_after_another_and_all_in_turn() -> None:
    publication = RecordPublication(Random(1))
    keys = [number.to_bytes(32, "big") for number in range(300)]
    publication.want(keys, 0.0)
    taken, now = [], 0.0
    while len(taken) < 300:
        if (key := publication.take(now)) is not None:
            taken.append(key)
            publication.note_announced(key, now, FEW)
        now += 0.5
    assert set(taken) == set(keys)
    assert now >= 299 * PAUSE
