"""Measures the distance of nodes from a key; all nodes in a region around the key count as equally near.

A key costs nothing, so an attacker computes keys until their places are nearer to a dataset's than any honest node's.
So within the region of a place in which as many nodes are expected as keep a record, nearer is no better: a searching
node asks there in random order, and an answering node chooses at random.
"""

from __future__ import annotations

import msgspec


class Region(msgspec.Struct, frozen=True):
    target: int
    radius: int = 0
    """The size of the region; 0: no region, nearer is better everywhere."""

    def distance(self, place: int) -> int:
        """Returns the XOR of both places; 0 within the region."""
        distance = place ^ self.target
        return distance if distance >= self.radius else 0
