"""Who meets whom in large networks, as models: over connections that nodes keep, and by presences that they swap.

``ODF_SOAK`` runs more worlds, and a thousand nodes that swap presences.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from p2p.driver.discovery import LIFETIME, RENEW, SAMPLE
from p2p.driver.settings import ReplicationSettings
from p2p.machines.holder_connections import ENOUGH
from p2p.peers.directory import MAX_PRESENCES

SOAK = "ODF_SOAK" in os.environ
MINUTE = ReplicationSettings(network="x").entropy_interval
NODES, DEGREE = 10_000, 8
KNOWN = MAX_PRESENCES / NODES
"""The part of all that a directory holds; six peers that are asked know as much each, and not the same."""
WORLDS = 40 if SOAK else 2
ROUNDS = 3
"""Attempts to meet others: at once, a minute and three minutes later."""


class World:
    """Node 0 publishes; it and ``mirrors`` others want one dataset, and the rest does not.

    Nobody passes on what it does not want; a node knows of 4,096 presences; those who serve the dataset are met by lot,
    two at first and one more with each later attempt, as ``p2p.machines.holder_connections`` asks for them. Words are
    followed from the publisher: to its neighbours, from whoever wants the dataset to those neighbours who do, and over
    one node between that does not want it, as it sends on to who is known to.
    """

    def __init__(self, mirrors: int, lot: Random) -> None:
        self.lot = lot
        self.links: list[set[int]] = [set() for _ in range(NODES)]
        for one in range(NODES):
            for _ in range(DEGREE):
                self.join(one, lot.randrange(NODES))
        self.wants = {0, *lot.sample(range(1, NODES), mirrors)}

    def join(self, one: int, other: int) -> None:
        if one != other:
            self.links[one].add(other)
            self.links[other].add(one)

    def attempt(self) -> None:
        for one in sorted(self.wants):
            serving = self.links[one] & self.wants
            others = sorted(self.wants - self.links[one] - {one})
            told = [each for each in others if self.lot.random() < 1 - (1 - KNOWN) ** 7]
            for other in self.lot.sample(told, min(len(told), max(1, ENOUGH - len(serving)))):
                self.join(one, other)

    def reached(self) -> set[int]:
        """Who hears what node 0 says."""
        hears, edge = {0}, [0]
        while edge:
            found: set[int] = set()
            for one in edge:
                near = self.links[one]
                found |= near & self.wants
                if one == 0:  # all its neighbours hear it, and send it on to who wants it
                    found |= {far for each in near for far in self.links[each] & self.wants}
            edge = sorted(found - hears)
            hears |= found
        return hears


@pytest.mark.slow
@pytest.mark.parametrize("mirrors", [1, 2, 5, 10, 100, 1000])
def test_all_who_want_a_dataset_hear_its_publisher_after_three_attempts(mirrors: int) -> None:
    """In a network of 10,000 nodes they hang together over the connections that each keeps to others."""
    for seed in range(WORLDS):
        company = World(mirrors, Random(seed))
        for _ in range(ROUNDS):
            company.attempt()
        assert company.reached() >= company.wants, f"seed {seed}"


def test_without_company_a_mirror_hears_nothing() -> None:
    company = World(10, Random(1))
    assert len(company.reached() & company.wants) < 10


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
@pytest.mark.parametrize("nodes", [20, 100, *([1000] if SOAK else [])])
def test_all_of_a_network_know_each_other_without_gossip(nodes: int) -> None:
    """Each minute a node swaps its own presence and a sample with a neighbour."""
    assert min(known(nodes, 10_800)) >= 0.98 * nodes
