"""Measures the distance of nodes from a key; all nodes in a region around the key count as equally near.

A key costs nothing, so an attacker computes keys until their places are nearer to a dataset's than any honest node's.
So within the region of a place in which as many nodes are expected as keep a record, nearer is no better: a searching
node asks there in random order, and an answering node chooses at random.

A region is divided into parts of equal size, and the rest of the space into as large ones. Keys computed to be nearest
to a place lie in one part, or in few, while honest nodes are spread over all. So a part has few turns in a search and
in an answer, whatever is crowded in it.
"""

from __future__ import annotations

from typing import Final

import msgspec

PARTS: Final = 16
"""Parts of a region. Where 20 nodes are expected, a part has 1.25, and more than 6 with a probability of 0.0003."""


class Region(msgspec.Struct, frozen=True):
    target: int
    radius: int = 0
    """The size of the region; 0: no region, nearer is better everywhere."""

    def distance(self, place: int) -> int:
        """Returns the XOR of both places; 0 within the region."""
        distance = place ^ self.target
        return distance if distance >= self.radius else 0

    def part(self, place: int) -> int | None:
        """Returns the number of the part in which a place is, below ``PARTS`` within the region;
        ``None``: there is no region."""
        return (place ^ self.target) * PARTS // self.radius if self.radius else None
