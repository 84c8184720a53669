"""Presences that nobody gossips on still reach all: each minute a node swaps its own and a sample with a neighbour.

``ODF_SOAK`` goes on to a thousand nodes.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from p2p.driver.discovery import LIFETIME, RENEW, SAMPLE
from p2p.driver.settings import ReplicationSettings
from p2p.peers.directory import MAX_PRESENCES

MINUTE = ReplicationSettings(network="x").entropy_interval
DEGREE = 8


def known(nodes: int, seconds: float, seed: int = 1) -> list[int]:
    """How many presences that have not ended each node knows then; each knew its neighbours at the start."""
    lot = Random(seed)
    links = [[lot.randrange(nodes) for _ in range(DEGREE)] for _ in range(nodes)]
    offsets = [lot.uniform(0, RENEW) for _ in range(nodes)]
    issued: list[dict[int, float]] = [{} for _ in range(nodes)]
    for minute in range(int(seconds / MINUTE)):
        now = minute * MINUTE
        for one in range(nodes):
            issued[one][one] = now - (now + offsets[one]) % RENEW
        for one in range(nodes):
            other = lot.choice(links[one])
            for teller, hearer in ((one, other), (other, one)):
                names = list(issued[teller])
                told = [teller, *(lot.choice(names) for _ in range(SAMPLE))]
                book = issued[hearer]
                for name in told:
                    at = issued[teller][name]
                    if at > now - LIFETIME and at > book.get(name, -LIFETIME):
                        if name not in book and len(book) >= MAX_PRESENCES:
                            del book[next(iter(book))]
                        book[name] = at
        if minute % 10 == 9:
            issued = [{name: at for name, at in book.items() if at > now - LIFETIME} for book in issued]
    return [len(book) for book in issued]


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [20, 100, *([1000] if "ODF_SOAK" in os.environ else [])])
def test_all_of_a_network_know_each_other_without_gossip(nodes: int) -> None:
    assert min(known(nodes, 10_800)) >= 0.98 * nodes
