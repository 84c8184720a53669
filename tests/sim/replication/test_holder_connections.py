"""In a network of 10,000 nodes those who want one dataset hang together over the connections that each keeps to others.

Nobody passes on what it does not want; a node knows of 4,096 presences; those who serve the dataset are met by lot, two
at first and one more with each later attempt, as ``p2p.machines.holder_connections`` asks for them. Words are followed
from the publisher: to its neighbours, from whoever wants the dataset to those neighbours who do, and over one node
between that does not want it, as it sends on to who is known to. ``ODF_SOAK`` runs more worlds.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from p2p.machines.holder_connections import ENOUGH
from p2p.peers.directory import MAX_PRESENCES

NODES, DEGREE = 10_000, 8
KNOWN = MAX_PRESENCES / NODES
"""The part of all that a directory holds; six peers that are asked know as much each, and not the same."""
WORLDS = 40 if "ODF_SOAK" in os.environ else 2
ROUNDS = 3
"""Attempts to meet others: at once, a minute and three minutes later."""


class World:
    """Node 0 publishes; it and ``mirrors`` others want one dataset, and the rest does not."""

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
    for seed in range(WORLDS):
        company = World(mirrors, Random(seed))
        for _ in range(ROUNDS):
            company.attempt()
        assert company.reached() >= company.wants, f"seed {seed}"


def test_without_company_a_mirror_hears_nothing() -> None:
    company = World(10, Random(1))
    assert len(company.reached() & company.wants) < 10
