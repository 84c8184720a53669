"""States what each kind of work costs this node, in microseconds of one core, measured on the reference machine.

Work is charged by these numbers before it is done; what a handler is then measured to have taken beyond them is charged
after. They need to be right within a factor of a few: they divide a core among peers, they measure nothing.
"""

from __future__ import annotations

from typing import Final

SECOND: Final = 1_000_000.0
"""Of one core."""
YAMUX_FRAME: Final = 2.5
"""To parse one frame of the muxer and to note what it says."""
STREAM: Final = 1_500.0
"""To open a stream: a task, and the negotiation of its protocol."""
HANDSHAKE: Final = 10_000.0
"""Of one who dials us: noise, the muxer, and what the library asks of each new connection."""
MEETING: Final = 20_000.0
"""To compare statements with a new peer, and to tell each other of others."""
GOSSIP_FRAME: Final = 100.0
"""To parse one frame of gossip, and to wake who reads it."""
GOSSIP_ENTRY: Final = 5.0
"""A subscription, or one name in a control part."""
GOSSIP_MESSAGE: Final = 400.0
"""To verify the signature of a message, and to judge and pass on what it says."""
GOSSIP_BYTE: Final = 0.05
"""To parse a byte of a frame that turns out to be none."""
PRESENCE: Final = 400.0
"""To read a presence, to verify that its peer signed it, and to keep it."""
PEERS_QUESTION: Final = 3_000.0
"""To look up who serves sixteen datasets, and to tell of sixty-four peers."""
