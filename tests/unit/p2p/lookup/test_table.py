"""What a node of the lookup keeps: contacts and records."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.statements.keys import SigningKey
from p2p.lookup.records import ProviderRecords, RecordLimits
from p2p.lookup.table import Region, RoutingTable, TableLimits
from p2p.wire.contact import BITS, LookupContact, block_of, place_of_node
from p2p.wire.lookup import StoreOutcome, seal_record
from p2p.wire.presence import Presence
from worlds.depth import share

# Buckets: who answered stays, who only asked does not come in, and many keys at few addresses stay few entries.

ME = place_of_node(b"m" * 32)


def at(number: int, ip: bytes | None = None) -> LookupContact:
    return LookupContact(
        number.to_bytes(32, "big"), ip or bytes([60 + number // 65_536, number // 256 % 256, number % 256, 1]), 1
    )


def full(count: int, limits: TableLimits | None = None) -> RoutingTable:
    table = RoutingTable(ME, limits or TableLimits())
    for number in range(count):
        table.note_answer(at(number), float(number))
    return table


def test_only_who_answered_is_told() -> None:
    table = RoutingTable(ME)
    table.suggest(at(1))
    assert table.nearest(ME, 20) == []
    contact = table.suggestion(Random(1))
    assert contact == at(1)
    table.note_answer(at(1), 0.0)
    assert table.nearest(ME, 20) == [at(1)]


@pytest.mark.slow
def test_it_is_logarithmic() -> None:
    assert len(full(200)) > 60
    assert len(full(5000)) < 20 * 13
    assert full(5000).spares <= 20 * 14


@pytest.mark.slow
@given(st.integers(0, 2**BITS - 1), st.integers(1, 40))
@settings(max_examples=share(50))
def test_the_nearest_are_those_of_all_entries(target: int, count: int) -> None:
    table = full(400)
    everyone = sorted(table, key=lambda one: one.place ^ target)
    assert table.nearest(target, count) == everyone[:count]


@pytest.mark.slow
def test_who_answers_is_never_replaced() -> None:
    table = full(5000)
    before = set(table)
    for number in range(5000, 10_000):
        table.note_answer(at(number), 1e6)
    assert set(table) >= before


@pytest.mark.slow
def test_who_does_not_answer_goes_when_another_waits() -> None:
    table = full(5000)
    gone = table.longest_silent(1e6, 1.0)
    assert gone is not None
    table.note_failure(gone.key, gone.place)
    assert gone not in set(table)
    fresh = table.suggestion(Random(1))
    assert fresh is not None
    table.note_answer(fresh, 2e6)
    assert fresh in set(table)


def test_where_nobody_waits_one_lost_question_is_forgiven() -> None:
    table = RoutingTable(ME)
    table.note_answer(at(1), 0.0)
    table.note_failure(at(1).key, at(1).place)
    assert len(table) == 1
    table.note_failure(at(1).key, at(1).place)
    assert len(table) == 0


def test_many_keys_in_one_block_are_few_entries() -> None:
    table = RoutingTable(ME)
    for number in range(1000):
        table.note_answer(at(number, bytes([60, 1, 2, number % 250 + 1])), 0.0)
    assert len(table) == TableLimits().of_block_in_all
    for number in range(1000, 2000):
        table.note_answer(at(number, bytes.fromhex("2a010db800420000") + number.to_bytes(8, "big")), 0.0)
    assert len(table) == 2 * TableLimits().of_block_in_all


@pytest.mark.slow
def test_suggestions_of_one_block_do_not_push_out_others() -> None:
    table = full(5000)
    spares = table.spares
    for number in range(5000, 50_000):
        table.suggest(at(number, bytes([90, 1, 2, number % 250 + 1])))
    assert table.spares <= spares + 14


def test_nodes_of_a_lan_count_each() -> None:
    table = RoutingTable(ME)
    for number in range(40):
        table.note_answer(at(number, bytes([192, 168, 1, number + 1])), 0.0)
    assert len(table) > 20
    assert block_of(bytes([192, 168, 1, 1]), b"a") != block_of(bytes([192, 168, 1, 1]), b"b")
    assert block_of(bytes([60, 1, 2, 3]), b"a") == block_of(bytes([60, 1, 2, 4]), b"b")


def test_who_moved_is_one_entry() -> None:
    table = RoutingTable(ME)
    table.note_answer(at(1), 0.0)
    moved = at(1, bytes([80, 1, 1, 1]))
    table.note_answer(moved, 1.0)
    assert list(table) == [moved]


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [500, 4000])
def test_how_many_there_are_is_estimated(nodes: int) -> None:
    table = full(nodes)
    assert nodes / 3 < table.size() < nodes * 3
    assert table.region(1, 20).radius == 0, "before it knows its neighbours it guesses nothing"
    table.settled = True
    target = at(77).place
    region = table.region(target, 20)
    inside = sum(not region.distance(at(number).place) for number in range(nodes))
    assert 6 < inside < 60


def test_who_crowds_beside_a_key_is_told_seldom() -> None:
    key = ME ^ (1 << 251)
    crowd = [number for number in range(400, 1 << 16) if not (at(number).place ^ key) >> 246][:20]
    table = RoutingTable(ME)
    for number in [*crowd, *range(400)]:
        table.note_answer(at(number), 0.0)
    region = Region(key, 1 << 252)
    told = table.around(region, 20, Random(1))
    assert len({*table} & {at(number) for number in crowd}) == 20
    assert len({*told} & {at(number) for number in crowd}) <= 4
    assert len(told) == 20


@pytest.mark.parametrize("beside", [1 << 250, 0])
def test_a_crowd_near_this_node_makes_no_network_look_large(beside: int) -> None:
    """Also one in whose midst this node is."""
    table = full(400)
    before = table.size()
    crowd = [number for number in range(400, 1 << 16) if not (at(number).place ^ ME ^ beside) >> 246][:40]
    for number in crowd:
        table.note_answer(at(number), 1.0)
    assert len(crowd) == 40
    assert table.size() < 2 * before


def test_within_a_region_nearer_is_no_better() -> None:
    table = full(30)
    near = sorted(table, key=lambda one: one.place ^ ME)
    region = Region(ME, (near[-1].place ^ ME) + 1)
    drawn = {one for seed in range(40) for one in table.around(region, 5, Random(seed))}
    assert drawn == set(near)
    assert table.around(Region(ME), 5, Random(1)) == near[:5]


def test_each_part_of_the_space_is_searched_in_turn() -> None:
    table, lot = full(500), Random(3)
    seen = set()
    while (target := table.refresh(10_000.0, 3600.0, lot)) is not None:
        table.looking(target, 10_000.0)
        seen.add((target ^ ME).bit_length())
    assert len(seen) >= 5
    assert max(seen) == BITS


# Records of who serves what: kept only when signed by who brings them, and bounded for each key, block, and in all.

NOW = 1_800_000_000_000
KEY = b"\7" * 32


def signer(number: int) -> SigningKey:
    return SigningKey(number.to_bytes(32, "big"))


def record(number: int, key: bytes = KEY, issued: int = NOW, network: str = "net") -> bytes:
    said = Presence(key=signer(number).public, issued=issued, lifetime=3600, addresses=("/ip4/60.0.0.1/tcp/1",))
    return seal_record(said, network, key, signer(number))


class Keeper:
    def __init__(self, secret: bytes = b"s", **limits: int) -> None:
        self.records, self.lot = ProviderRecords("net", secret, RecordLimits(**limits)), Random(1)

    def keep(
        self, number: int, raw: bytes | None = None, key: bytes = KEY, block: bytes | None = None, now: int = NOW
    ) -> StoreOutcome:
        raw = record(number, key) if raw is None else raw
        block = number.to_bytes(3, "big") if block is None else block
        return self.records.keep(key, raw, signer(number).public, block, now, self.lot)

    def of(self, key: bytes = KEY, now: int = NOW) -> tuple[bytes, ...]:
        return self.records.of(key, 16, now, self.lot)


def test_what_is_brought_is_told() -> None:
    keeper = Keeper()
    assert keeper.keep(1) is StoreOutcome.KEPT
    assert keeper.of() == (record(1),)
    assert keeper.of(b"\x08" * 32) == ()


@pytest.mark.parametrize(
    "raw",
    [
        record(1, b"\x08" * 32),
        record(1, network="other"),
        record(2),
        record(1)[:-1] + b"\0",
        record(1, issued=NOW - 3_600_000),
        record(1, issued=NOW + 601_000),
        b"",
    ],
    ids=["another key's", "another network's", "another peer's", "unsigned", "expired", "from the future", "nothing"],
)
def test_what_its_bringer_did_not_sign_for_this_key_is_refused(raw: bytes) -> None:
    keeper = Keeper()
    assert keeper.keep(1, raw) is StoreOutcome.BAD
    assert len(keeper.records) == 0


def test_a_newer_record_replaces_and_an_older_does_not() -> None:
    keeper = Keeper()
    keeper.keep(1)
    later = record(1, issued=NOW + 1)
    assert keeper.keep(1, later) is StoreOutcome.KEPT
    assert keeper.keep(1, record(1)) is StoreOutcome.BAD
    assert keeper.of() == (later,)
    assert keeper.keep(1, later) is StoreOutcome.KEPT, "the same again"
    assert len(keeper.records) == 1


def test_records_expire() -> None:
    keeper = Keeper()
    for number in range(1, 5):
        keeper.keep(number)
    late = NOW + 3_600_000
    assert keeper.of(now=late) == ()
    assert keeper.records.expire(late) == 4
    assert len(keeper.records) == 0


def test_one_block_has_two_places_for_a_key_and_so_many_in_all() -> None:
    keeper = Keeper(of_block=4)
    kept = [keeper.keep(number, block=b"one") for number in range(1, 5)]
    assert kept == [StoreOutcome.KEPT, StoreOutcome.KEPT, StoreOutcome.FULL, StoreOutcome.FULL]
    for each in range(10, 20):
        keeper.keep(each, key=bytes([each]) * 32, block=b"one", raw=record(each, bytes([each]) * 32))
    assert len(keeper.records) == 4
    assert keeper.keep(99, block=b"two") is StoreOutcome.KEPT


@pytest.mark.slow
def test_coming_often_or_first_pushes_nobody_out() -> None:
    """Each block has its rank for a key, which the node alone knows; so what is kept does not depend on the order."""
    kept = set()
    for seed in range(5):
        keeper = Keeper(of_key=4)
        order = list(range(1, 31))
        Random(seed).shuffle(order)
        for number in order * 2:
            keeper.keep(number)
        kept.add(frozenset(keeper.of()))
    assert len(kept) == 1
    assert len(next(iter(kept))) == 4


@pytest.mark.slow
def test_a_full_key_keeps_others_at_each_node() -> None:
    chances = 0
    for node in range(40):
        keeper = Keeper(secret=bytes([node]), of_key=8)
        for number in range(2, 34):
            keeper.keep(number)
        chances += keeper.keep(1) is StoreOutcome.KEPT
    assert 2 <= chances <= 20, "8 of 33, about, and not the same ones everywhere"


def test_in_all_the_block_with_most_makes_room() -> None:
    keeper = Keeper(in_all=40, of_block=30)
    for number in range(1, 31):
        keeper.keep(number, key=bytes([number]) * 32, block=b"much", raw=record(number, bytes([number]) * 32))
    for number in range(31, 61):
        keeper.keep(number, key=bytes([number]) * 32, raw=record(number, bytes([number]) * 32))
    assert len(keeper.records) == 40
    others = sum(bool(keeper.of(bytes([number]) * 32)) for number in range(31, 61))
    assert others >= 27
    assert keeper.records.evicted == 20
