"""Records of who serves what: kept only when signed by who brings them, and bounded for each key, block, and in all."""

from __future__ import annotations

from random import Random

import pytest

from chain.statements.keys import SigningKey
from p2p.lookup.records import ProviderRecords, RecordLimits
from p2p.wire.lookup import StoreOutcome, seal_record
from p2p.wire.presence import Presence

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
