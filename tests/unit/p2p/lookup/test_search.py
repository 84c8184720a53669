"""One search: over disjoint paths, past nodes that are silent or lie, and always to an end."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.lookup.search import LIMITS, Search, SearchLimits
from p2p.lookup.table import Region
from p2p.wire.contact import LookupContact
from worlds.depth import share

TARGET = 1 << 255


def at(number: int, ip: bytes | None = None) -> LookupContact:
    ip = ip or bytes([60 + number % 30, number // 30 % 256, number // 7680 % 256, 1])
    return LookupContact(number.to_bytes(32, "big"), ip, 1)


NODES = [at(number) for number in range(1, 400)]
NEAREST = sorted(NODES, key=lambda one: one.place ^ TARGET)
Answer = Callable[[LookupContact], list[LookupContact] | None]


def honest(contact: LookupContact) -> list[LookupContact]:
    """It knows a tenth of the nodes, and those near itself."""
    lot = Random(contact.key)
    known = {*lot.sample(NODES, 40), *sorted(NODES, key=lambda one: one.place ^ contact.place)[:30]}
    return sorted(known, key=lambda one: one.place ^ TARGET)[:20]


def run(
    answer: Answer,
    seeds: list[LookupContact],
    lot: Random | None = None,
    region: Region | None = None,
    limits: SearchLimits = LIMITS,
) -> tuple[Search, float, list[LookupContact]]:
    """The search, the seconds that it took, and whom it asked. Who answers does so after 0.3 s."""
    search = Search(region or Region(TARGET), b"me", seeds, lot or Random(1), limits)
    now, asked, coming = 0.0, [], []
    for _ in range(10_000):
        for contact in search.late(now):
            search.note_failure(contact)
        for contact in search.step(now):
            asked.append(contact)
            if (told := answer(contact)) is not None:
                coming.append((now + 0.3, contact, told))
        if search.done:
            return search, now, asked
        turns = [when for when, *_ in coming]
        wake = search.wake(now)
        now = min([*turns, *([] if wake is None else [wake])]) + 1e-6
        for each in [each for each in coming if each[0] <= now]:
            coming.remove(each)
            search.note_answer(each[1], each[2])
    raise AssertionError("it does not end")


def test_it_finds_the_nearest() -> None:
    search, seconds, asked = run(honest, NODES[:3])
    assert set(NEAREST[:20]) == set(search.choose(20)[:20])
    assert len(asked) < 60
    assert seconds < 3


@pytest.mark.slow
@given(st.integers(0, 1000), st.floats(0, 0.3))
@settings(max_examples=share(30), deadline=None)
def test_silent_nodes_cost_time_and_no_result(seed: int, part: float) -> None:
    lot = Random(seed)
    silent = {one for one in NODES[3:] if lot.random() < part}
    search, _, _ = run(lambda one: None if one in silent else honest(one), NODES[:3], lot)
    living = [one for one in NEAREST if one not in silent]
    assert len(set(living[:20]) & set(search.choose(20))) >= 15


def test_no_node_is_asked_twice_and_each_path_is_its_own() -> None:
    _, _, asked = run(honest, NODES[:3])
    assert len(set(asked)) == len(asked)


def test_paths_that_one_liar_does_not_touch_arrive() -> None:
    """One of three seeds leads to a thousand invented nodes that are nearer than all."""
    invented = [at(1_000_000 + number) for number in range(1000)]
    near = sorted(invented, key=lambda one: one.place ^ TARGET)
    search, _, asked = run(
        lambda one: None if one in invented else near[:20] if one == NODES[0] else honest(one), NODES[:3]
    )
    assert len(set(NEAREST[:20]) & set(search.choose(20))) >= 19
    assert len(set(asked) & set(invented)) <= LIMITS.credit + 1, "what it told is believed no longer"


def test_a_crowd_of_liars_in_few_blocks_is_asked_little() -> None:
    crowd = [at(2_000_000 + number, bytes([90, 1, number % 4, number % 250])) for number in range(1000)]
    answers = {one: crowd[at : at + 20] for at, one in enumerate(crowd)}
    search, _, asked = run(lambda one: crowd[:20] if one == NODES[0] else answers.get(one) or honest(one), NODES[:3])
    assert len(set(asked) & set(crowd)) <= 4 * LIMITS.of_block
    assert len(set(NEAREST[:20]) & set(search.choose(28))) >= 19


def test_a_true_key_at_a_false_address_does_not_hide_the_node() -> None:
    wrong = {
        one.key: at(int.from_bytes(one.key, "big"), bytes([91, number, 0, 1]))
        for number, one in enumerate(NEAREST[:20])
    }
    liar = NODES[0]

    def answer(one: LookupContact) -> list[LookupContact] | None:
        if one == liar:
            return list(wrong.values())
        return None if one in wrong.values() else honest(one)

    search, _, _ = run(answer, NODES[:3])
    assert len(set(NEAREST[:20]) & set(search.choose(20))) >= 19


@pytest.mark.slow
def test_within_the_region_honest_nodes_are_met_among_many_nearer_ones() -> None:
    """Sixty nodes of an attacker, in sixty blocks, are nearer to the key than any other."""
    limit = NEAREST[19].place ^ TARGET
    gang = []
    number = 5_000_000
    while len(gang) < 60:
        number += 1
        if at(number).place ^ TARGET < limit // 64:
            gang.append(at(number, bytes([40 + len(gang), 1, 1, 1])))
    lot = Random(5)

    def answer(one: LookupContact) -> list[LookupContact]:
        if one in gang:
            return lot.sample(gang, 20)
        mixed = [*honest(one), *lot.sample(gang, 20)]
        return lot.sample(mixed, 20)

    search, _, _ = run(answer, NODES[:20], lot, Region(TARGET, limit + 1))
    assert len(set(search.choose(48)) & set(NODES)) >= 6
    plain, _, _ = run(answer, NODES[:20], lot)
    assert not set(plain.choose(20)[:20]) & set(NODES), "without the region the attacker's are the nearest"


def test_who_crowds_beside_the_key_ends_no_search() -> None:
    """A search ends when all in the region and the nearest answered: it must not be those that crowd in one part."""
    limit = NEAREST[19].place ^ TARGET
    found = (
        at(number, bytes([40 + number % 100, number // 100 % 100, 1, 1])) for number in range(6_000_000, 7_000_000)
    )
    crowd = list(islice((one for one in found if one.place ^ TARGET < limit // 64), 60))
    few = [NEAREST[5], NEAREST[50]]

    def answer(one: LookupContact) -> list[LookupContact]:
        return crowd[:20] if one in crowd else honest(one)

    region = Region(TARGET, limit + 1)
    crowded, _, _ = run(answer, [*crowd[:18], *few], Random(5), region)
    assert len(set(crowded.choose(48)) & set(NEAREST[:20])) >= 15
    assert len(set(crowded.choose(48)) & set(crowd)) <= LIMITS.of_part
    blind, _, _ = run(answer, [*crowd[:18], *few], Random(5), region, SearchLimits(of_part=1000))
    assert len(set(blind.choose(96)) & set(crowd)) >= 18


def test_invented_nodes_delay_no_end_where_few_answer() -> None:
    """Twelve nodes are all there are, and one of them names invented ones: the search cannot find twenty."""
    few, invented = NODES[:12], {at(9_000_000 + number) for number in range(1000)}
    near = sorted(invented, key=lambda one: one.place ^ TARGET)
    search, _, asked = run(lambda one: None if one in invented else near[:20] if one == few[0] else few, few[:3])
    assert {*search.choose(20)} == {*few}
    assert len({*asked} & invented) <= LIMITS.credit + LIMITS.doubted + LIMITS.paths


def test_nobody_to_ask_is_an_end() -> None:
    search, seconds, asked = run(honest, [])
    assert (search.choose(20), seconds, asked) == ([], 0.0, [])


@pytest.mark.slow
@given(st.integers(0, 10_000))
@settings(max_examples=share(40), deadline=None)
def test_it_ends_whatever_is_answered(seed: int) -> None:
    lot = Random(seed)
    pool = [at(lot.randrange(1 << 40), lot.randbytes(4)) for _ in range(300)]
    search, seconds, asked = run(lambda _: lot.sample(pool, 20) if lot.random() < 0.6 else None, pool[:5], lot)
    assert search.asked == len(asked) <= 2 * LIMITS.asked + 9
    assert seconds < 300
