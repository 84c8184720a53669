"""Who drips delays no mirror: once somebody has said to serve a chain, others have a moment more."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import trio

from chain.errors import Remote
from chain.ids import DatasetId
from odfd.mirrors.holders import GRACE_SECONDS, KNOWN_SECONDS, PROBE_SECONDS, SOON, STRANGERS, Holders
from p2p.ports import PeerId

DATASET = DatasetId.from_public_key(b"d" * 32)


class Network:
    """Peers that answer after so many seconds; those named ``known`` gave what proved true before."""

    def __init__(self, **waits: float) -> None:
        self.waits = waits
        self.told = set[str]()

    def peers(self) -> list[Any]:
        return [
            SimpleNamespace(peer=PeerId(name), connected=True, blocked=False, proven="known" in name)
            for name in self.waits
        ]

    async def chain_size(self, peer: PeerId, _dataset: DatasetId) -> int:
        await trio.sleep(self.waits[peer])
        if peer.startswith("empty"):
            raise Remote("has it not")
        return 7

    async def pull_statements(self, peer: PeerId, _datasets: Any) -> int:
        await trio.sleep(self.waits[peer])
        self.told.add(peer)
        return 0


async def found(network: Any) -> tuple[set[str], float]:
    began = trio.current_time()
    peers = await Holders(network, network).of(DATASET, 7)
    return set(peers), trio.current_time() - began


async def test_peers_that_drip_do_not_delay_what_others_serve(autojump_clock: Any) -> None:
    drips = {f"drips{number}": 60.0 for number in range(20)}
    peers, took = await found(Network(near=0.02, far=0.3, empty=0.01, **drips))
    assert peers == {"near", "far"}
    assert took <= 0.02 + GRACE_SECONDS + 0.001


async def test_a_slow_one_is_waited_for_where_nobody_else_has_it(autojump_clock: Any) -> None:
    assert (await found(Network(slow=PROBE_SECONDS - 1, empty=0.01)))[0] == {"slow"}
    peers, took = await found(Network(drips=60.0))
    assert not peers
    assert took == PROBE_SECONDS


async def test_others_are_hardly_waited_for_once_a_known_peer_serves_it(autojump_clock: Any) -> None:
    peers, took = await found(Network(boasts=0.001, known=0.02, far=0.3, drips=60.0))
    assert peers == {"boasts", "known"}
    assert took <= 0.02 + SOON[0] + 0.001
    peers, took = await found(Network(boasts=0.001, known=0.2, far=0.3, drips=60.0))
    assert peers == {"boasts", "known", "far"}, "who is as far is waited for as long"


async def test_what_strangers_say_at_once_keeps_out_no_known_peer(autojump_clock: Any) -> None:
    boasts = {f"boasts{number}": 0.001 for number in range(STRANGERS)}
    peers, took = await found(Network(known=GRACE_SECONDS + 1, **boasts))
    assert peers == {"known", *boasts}
    peers, took = await found(Network(known=60.0, **boasts))
    assert (peers, took) == ({*boasts}, 0.001 + KNOWN_SECONDS)


async def test_few_strangers_are_asked_beside_a_known_peer_and_each_time_others(autojump_clock: Any) -> None:
    network = Network(known=0.02, **{f"far{number}": 0.01 for number in range(40)})
    holders, asked = Holders(network, network), Counter[str]()  # type: ignore[arg-type]
    for _ in range(5):
        peers = await holders.of(DATASET, 7)
        assert len(peers) == 1 + STRANGERS
        asked.update(peers)
    assert len(asked) == 41, "those who served it are asked again, beside others"


async def test_what_strangers_say_keeps_nobody_from_being_asked(autojump_clock: Any) -> None:
    """Those who gave something have it not; who serves it is one of forty, of whom most say that they do."""
    strangers = {f"boasts{number}": 0.01 for number in range(40)}
    for waits in ({"known": 60.0}, {"empty-known": 0.01}):
        network = Network(**waits, **strangers, far=0.1)
        for _ in range(5):
            assert "far" in await Holders(network, network).of(DATASET, 7)  # type: ignore[arg-type]


async def test_all_are_asked_where_those_who_are_known_have_it_not(autojump_clock: Any) -> None:
    strangers = {f"empty{number}": 0.01 for number in range(20)}
    for waits in ({"known": 60.0}, {"empty-known": 0.01}):
        network = Network(**waits, **strangers, far=0.1)
        for _ in range(3):
            peers = await Holders(network, network).of(DATASET, 7)  # type: ignore[arg-type]
            assert peers == ["far"]


async def test_whether_a_holder_answered_is_told(autojump_clock: Any) -> None:
    network = Network(near=0.01, far=0.1, empty=0.01)
    holders = Holders(network, network)  # type: ignore[arg-type]
    assert await holders.news(DATASET) == 0, "nobody is known to hold it"
    assert set(await holders.of(DATASET, 7)) == {"near", "far"}
    network.waits |= {"near": 60.0}
    assert await holders.news(DATASET) == 0
    network.waits |= {"far": 60.0}
    assert await holders.news(DATASET) == 2


async def test_news_are_not_waited_for_of_those_who_drip(autojump_clock: Any) -> None:
    """A person waits for them, at each pull."""
    drips = {f"drips{number}": 60.0 for number in range(20)}
    for known in ({}, {"known1": 0.02, "known2": 1.0}):
        network, began = Network(**known, near=0.01, far=1.3, **drips), trio.current_time()
        await Holders(network, network).news(DATASET)  # type: ignore[arg-type]
        assert network.told == {*known, "near", "far"}
        assert trio.current_time() - began == (1.0 + GRACE_SECONDS if known else PROBE_SECONDS)
