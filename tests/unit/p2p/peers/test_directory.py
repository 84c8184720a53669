"""The directory is bounded in presences and tags, fair to those who bring them, and never walks through all."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.peers import directory as directory_module
from p2p.peers.directory import MAX_TAGS_KEPT, Directory, lots
from p2p.ports import Judgement, PeerId
from p2p.wire import presence as wire
from p2p.wire.limits import MAX_TAGS
from p2p.wire.presence import PeersAsk, Presence
from worlds.watchdog import held

ME, ANNA = PeerId("me"), PeerId("anna")
NOW = 1_700_000_000_000


@pytest.fixture(autouse=True)
def unsigned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signatures are verified elsewhere."""
    monkeypatch.setattr(directory_module.wire, "is_signed", lambda *_: True)


def said(seed: int, tags: tuple[int, ...] = (), issued: int = NOW, lifetime: int = 3600) -> bytes:
    key = seed.to_bytes(32, "big")
    address = ("/ip4/10.0.0.1/tcp/1",)
    return wire.encode(Presence(key=key, issued=issued, lifetime=lifetime, tags=tags, addresses=address)) + bytes(64)


@pytest.mark.slow
def test_a_full_directory_answers_and_admits_without_holding_the_loop() -> None:
    """Attack T-PEER-04: questions about a full directory of presences with the maximum of tags.

    Defence: presences are found by an index of tags; 131,072 tags in all.

    87 ms for a question and 2 ms for each admission; and 150 MiB of tags, which nothing bounded.
    """
    directory, rng = Directory("test", ME), Random(1)
    for seed in range(1, 5000):
        tags = sorted(rng.sample(range(1 << 20), MAX_TAGS if seed % 20 == 0 else 16))
        directory.admit(said(seed, tuple(tags)), f"net{seed % 300}", NOW)
    assert directory._tags <= MAX_TAGS_KEPT
    ask = PeersAsk(wanted=64, tags=tuple(range(0, 160, 10)))
    more = [said(seed, tuple(range(seed, seed + 32))) for seed in range(9000, 9400)]
    with held(0.020) as spent:
        directory.tell(ask, ANNA, NOW, rng)
        spent.turn()
        directory.tell(PeersAsk(wanted=64), ANNA, NOW, rng)
        spent.turn()
        directory.holders(7, NOW)
    with held(0.2):
        for raw in more:
            directory.admit(raw, "net1", NOW)


def test_strangers_can_be_dialled_and_were_not_met() -> None:
    directory = Directory("test", ME)
    for seed, lifetime in ((1, 3600), (2, 60), (3, 3600)):
        directory.admit(said(seed, lifetime=lifetime), "net", NOW)
    nowhere = Presence(key=(4).to_bytes(32, "big"), issued=NOW, lifetime=3600)
    directory.admit(wire.encode(nowhere) + bytes(64), "net", NOW)
    keys = [int.from_bytes(one.key, "big") for one in directory.strangers(set(), NOW)]
    assert keys == [1, 2, 3]
    met = Presence(key=(3).to_bytes(32, "big"), issued=0, lifetime=1).peer
    assert [int.from_bytes(one.key, "big") for one in directory.strangers({met}, NOW + 120_000)] == [1]


@pytest.mark.slow
def test_many_keys_of_one_network_push_out_nobody_elses() -> None:
    directory = Directory("test", ME, capacity=100)
    for seed in range(1, 21):
        directory.admit(said(seed), "honest", NOW)
    for seed in range(1000, 4000):
        directory.admit(said(seed), "evil", NOW)
    known = [
        directory.of(Presence(key=seed.to_bytes(32, "big"), issued=0, lifetime=1).peer, NOW) for seed in range(1, 21)
    ]
    assert all(known)
    assert len(directory) == 100


def test_large_presences_push_out_those_of_their_own_source() -> None:
    directory = Directory("test", ME, most_tags=3000)
    for seed in range(1, 51):
        directory.admit(said(seed, (seed,)), "honest", NOW)
    for seed in range(1000, 1100):
        directory.admit(said(seed, tuple(range(MAX_TAGS))), "evil", NOW)
    assert directory._tags <= 3000
    assert all(directory.holders(tag, NOW) for tag in range(1, 51))


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3), st.integers(0, 5), st.integers(1, 100))))
def test_prop_what_is_found_by_tag_is_what_is_known(steps: list[tuple[int, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory_module.wire, "is_signed", lambda *_: True)
        directory, now = Directory("test", ME, capacity=6, most_tags=12), NOW
        for seed, source, tag, pause in steps:
            now += pause * 1000
            raw = said(seed, (tag, tag + 10), issued=now, lifetime=60)
            assert directory.admit(raw, f"net{source}", now) is Judgement.ACCEPT
            assert len(directory) <= 6
            assert directory._tags <= 12
            for wanted in range(16):
                living = [each.presence for each in directory._known.values() if each.presence.expires > now]
                assert set(directory.holders(wanted, now)) == {one for one in living if wanted in one.tags}
            weights = {source: 32 * len(brought) + 2 * len(brought) for source, brought in directory._brought.items()}
            assert directory._weights == weights


@given(st.integers(0, 50), st.integers())
def test_prop_lots_are_all_of_the_pool(size: int, seed: int) -> None:
    pool = [PeerId(str(number)) for number in range(size)]
    assert sorted(lots(list(pool), Random(seed))) == sorted(pool)
