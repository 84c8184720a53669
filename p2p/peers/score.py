"""Scores a peer by its behaviour towards this node, fading with time. A score is no evidence for others.

Zero is a stranger. Penalties go below, halve every ten minutes, and at the threshold the peer is shut out; by the same
fading it is let in again after a while. Spec: docs/spec/trust.md#bundles.
"""

from __future__ import annotations

from typing import Final

import msgspec

HALF_LIFE: Final = 600.0
"""Seconds in which a penalty loses half of its weight."""
SHUT_OUT: Final = -100.0
"""Score below which we do not talk to a peer: ten bad blocks in ten minutes."""
LET_IN: Final = -50.0
"""Score above which one that was shut out is talked to again: one half-life later."""

BAD_BYTES: Final = 10.0
"""Weight of bytes that miss their hash or break a rule: nobody sends them by accident more than once."""
GARBAGE: Final = 20.0
"""Weight of a message that is none of the protocol's, or is over a limit."""
FLOOD: Final = 1.0
"""Weight of one message more than the budget."""
UNRELIABLE: Final = 0.5
"""Weight of a silence or a broken promise: may well be the network's fault, or that of others who keep it busy."""
DOUBTED: Final = -20.0
"""Score below which nothing of that weight brings a peer: nobody is shut out for what others do to it."""


class Score(msgspec.Struct, frozen=True):
    """``value`` as of ``at`` (seconds, monotonic or not, but the same clock throughout)."""

    value: float = 0.0
    at: float = 0.0
    shut_out: bool = False

    def as_of(self, now: float) -> Score:
        value = self.value * 0.5 ** (max(0.0, now - self.at) / HALF_LIFE)
        return Score(value, now, value <= SHUT_OUT or (self.shut_out and value < LET_IN))

    def penalised(self, weight: float, now: float) -> Score:
        """Raises nothing: a negative or absurd weight counts as none."""
        faded = self.as_of(now)
        value = max(faded.value - max(0.0, weight), 10 * SHUT_OUT)
        if weight <= UNRELIABLE:
            value = max(value, min(faded.value, DOUBTED))
        return Score(value, now, faded.shut_out or value <= SHUT_OUT)
