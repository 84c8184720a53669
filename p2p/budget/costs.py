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
RANGE: Final = 200.0
"""To find a range of a chain or a part of an object and to hand it to a stream. What is read costs time of the disk,
and turns divide that."""
SMALL_OBJECT: Final = 20.0
"""To look one up of those that go together, and to read it."""
SUMS: Final = 500.0
"""To tell sums or a listing, and"""
LISTED: Final = 2.0
"""for each statement that is held here: all of them are looked at."""
ENVELOPE: Final = 20.0
"""To find one statement by its name."""
PROOF: Final = 5_000.0
"""To prove something of a chain; the first proof of a long one reads all its hashes."""
STATEMENT: Final = GOSSIP_MESSAGE
"""To verify a statement that we asked for, to judge it, and to write it where it is kept."""
SITE_ANSWER: Final = 1_000.0
"""To read a small file of a dataset for a visitor of the site,"""
SITE_PACK: Final = 20_000.0
"""and to put a thousand blocks into one."""
SITE_QUESTION: Final = 300_000.0
"""To plan a query of a visitor and to compute its rows in a process of its own, about."""
PRESENCE: Final = 400.0
"""To read a presence, to verify that its peer signed it, and to keep it."""
PEERS_QUESTION: Final = 3_000.0
"""To look up who serves sixteen datasets, and to tell of sixty-four peers."""
