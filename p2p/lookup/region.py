"""Says how far a node is from a key, where all that are near enough count as equally near.

A key costs nothing, so an attacker computes keys until their places are nearer to a dataset's than any honest node's.
In the surroundings of a place in which as many nodes are to be expected as keep a record, nearer is therefore no
better: who searches there asks in a random order, and who answers draws by lot.
"""

from __future__ import annotations

import msgspec


class Region(msgspec.Struct, frozen=True):
    target: int
    radius: int = 0
    """0: nearer is better everywhere."""

    def distance(self, place: int) -> int:
        """The XOR of both places; 0 within the region."""
        distance = place ^ self.target
        return distance if distance >= self.radius else 0
