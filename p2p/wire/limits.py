"""Defines every bound of the replication protocols. Data beyond a bound is refused before it is read into memory.

The bounds are part of the protocol (ADR 2): an honest peer never exceeds one, so doing so is misbehaviour.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

MAX_BLOCK: Final = 16 * MIB
"""Bytes of one metadata block, as in the codec. Real ones have 0.2 to 20 KiB, that of the widest known schema 300."""
MAX_RANGE_BYTES: Final = 1 * MIB
"""Bytes of blocks in one answer (but always one block); larger writes are no faster."""
MAX_RANGE_BLOCKS: Final = 16 * KIB
"""Blocks in one answer: the table of lengths then has 64 KiB, and the receiver makes as many slices."""
MAX_OBJECT_READ: Final = 1 * MIB
"""Bytes of an object in one answer. A transfer resumes, switches peers and uses memory in units of this."""
MAX_PACKED: Final = 64 * KIB
"""Bytes of an object that is sent whole, together with others."""
MAX_PACK: Final = 128
"""Objects in one answer; the question then has 4 KiB."""
MAX_PACK_BYTES: Final = 1 * MIB
"""Bytes of the objects in one answer."""
MAX_REQUEST: Final = 6 + 34 * MAX_PACK
"""Bytes of a request of the chain and object protocols: 4,358, for ``MAX_PACK`` small objects."""
MAX_REASON: Final = 256
"""Bytes of the text in a refusal: a sentence."""
MAX_REPLY: Final = MAX_BLOCK + 4 * MAX_RANGE_BLOCKS + 64
"""Bytes of an answer of the chain and object protocols: one block of the largest size, table and header."""

MAX_ENVELOPE: Final = 96 * KIB
"""Bytes of a signed statement's envelope or of a proof, gossiped or pulled: 64 KiB of proof in base64, and names."""
MAX_TRUST_REQUEST: Final = 64 * KIB
"""Bytes of a request of the trust protocol: 256 names of 80 characters, and room for future fields."""
MAX_TRUST_REPLY: Final = 1 * MIB
"""Bytes of an answer of the trust protocol; longer answers come in pages."""
BUCKETS: Final = 256
"""Buckets into which datasets are divided for sums: 256 hashes (17 KiB) show which 256th of all statements differs."""
MAX_SIDS: Final = 256
"""Statements in one ``get`` request (docs/spec/trust.md#gossip)."""
MAX_DATASETS: Final = 256
"""Datasets in one ``list`` request."""
MAX_LISTED: Final = 4 * KIB
"""Statement ids in one page of a listing; with their datasets' names well below the limit of an answer."""

MAX_PRESENCE_ADDRESSES: Final = 8
"""Addresses in a node's presence."""
MAX_TAGS: Final = 1024
"""Datasets in a presence. A node with more sets a flag, and is asked if no other holder is known."""
MAX_PRESENCE_LIFETIME: Final = 7200
"""Seconds for which a presence is valid at most. With more, newcomers would be sent to nodes that are gone."""
MAX_PRESENCE: Final = 45 + MAX_PRESENCE_ADDRESSES * 256 + 2 + 4 * MAX_TAGS + 64
"""Bytes of a presence, 6,255; one of a node with two addresses and ten datasets has about 200."""
MAX_PRESENCES: Final = 64
"""Presences in one answer about peers."""
MAX_TAGS_ASKED: Final = 16
"""Datasets in one question about peers."""
MAX_PEERS_ASK: Final = 3 + 4 * MAX_TAGS_ASKED + MAX_PRESENCE
"""Bytes of a question about peers."""
MAX_PEERS_ANSWER: Final = 2 + MAX_PRESENCES * (2 + MAX_PRESENCE)
"""Bytes of an answer about peers: 391 KiB at worst."""

MAX_LOOKUP_CONTACTS: Final = 20
"""Nodes in one answer of the lookup: as many as keep a record."""
MAX_LOOKUP_RECORDS: Final = 16
"""Records in one answer of the lookup."""
MAX_RECORD: Final = 45 + MAX_PRESENCE_ADDRESSES * 256 + 2 + 64
"""Bytes of a record that says who serves a dataset, 2,159; one with two addresses has about 160."""
MAX_LOOKUP_ASK: Final = 1 + 32 + 19 + MAX_RECORD
"""Bytes of a question of the lookup: 2,211, for one that asks to keep a record."""
MAX_LOOKUP_ANSWER: Final = 3 + MAX_LOOKUP_CONTACTS * (19 + 32) + MAX_LOOKUP_RECORDS * (2 + MAX_RECORD)
"""Bytes of an answer of the lookup, 35,599 at worst; usually below 1,000."""

MAX_SWARM_BLOCKS: Final = 64 * KIB
"""Blocks in one map of objects: 8 KiB, more than a mirror takes in one step."""
MAX_SWARM_PEERS: Final = 8
"""Presences of other peers in one answer about objects of a dataset."""
MAX_SWARM_ASK: Final = 87 + MAX_SWARM_BLOCKS // 8
"""Bytes of a question about objects of a dataset, 8,279; for a step of 200 blocks, 112."""
MAX_SWARM_ANSWER: Final = 10 + MAX_SWARM_BLOCKS // 4 + MAX_SWARM_PEERS * (2 + MAX_PRESENCE)
"""Bytes of an answer, 66,450 at worst."""

MAX_PIECES_ASK: Final = 77 + 32 + 4096 // 8
"""Bytes of a question about pieces, 621."""
MAX_PIECES_ANSWER: Final = 65 + 32 * 4096
"""Bytes of an answer about pieces: a list of hashes, 131,137 at worst."""
