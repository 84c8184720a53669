"""Defines every bound of the replication wire. What exceeds a bound is refused before it is read into memory.

The bounds are part of the protocol (ADR 0002): an honest peer never crosses one, so crossing one is misbehaviour.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

MAX_BLOCK: Final = 16 * MIB
"""Bytes of one metadata block, as the codec has it. Real ones have 0.2 to 20 KiB, the widest schema known 300."""
MAX_RANGE_BYTES: Final = 1 * MIB
"""Bytes of blocks in one answer (but always one block): the largest write that still gains speed."""
MAX_RANGE_BLOCKS: Final = 16 * KIB
"""Blocks in one answer: a table of lengths of 64 KiB, and as many slices for the one who splits it."""
MAX_OBJECT_READ: Final = 1 * MIB
"""Bytes of an object in one answer: the unit of resuming, of switching peers and of memory in flight."""
MAX_PACKED: Final = 64 * KIB
"""Bytes of an object that is sent whole beside others."""
MAX_PACK: Final = 128
"""Objects in one answer: a question of 4 KiB."""
MAX_PACK_BYTES: Final = 1 * MIB
"""Bytes of the objects in one answer."""
MAX_REQUEST: Final = 6 + 34 * MAX_PACK
"""Bytes of a request frame of the chain and object protocols, 4,358: a question for so many small objects."""
MAX_REASON: Final = 256
"""Bytes of the text in a refusal: a sentence."""
MAX_REPLY: Final = MAX_BLOCK + 4 * MAX_RANGE_BLOCKS + 64
"""Bytes of an answer frame of the chain and object protocols: one block of the largest size, table and header."""

MAX_ENVELOPE: Final = 96 * KIB
"""Bytes of a signed statement's envelope or of a proof, gossiped or pulled: 64 KiB of proof in base64, and names."""
MAX_TRUST_REQUEST: Final = 64 * KIB
"""Bytes of a request of the trust protocol: 256 names of 80 characters, with room for fields to come."""
MAX_TRUST_REPLY: Final = 1 * MIB
"""Bytes of an answer of the trust protocol; longer answers come in pages."""
BUCKETS: Final = 256
"""Buckets of datasets in a sum: 256 hashes tell in 17 KiB which 256th of all statements differs."""
MAX_SIDS: Final = 256
"""Statements in one ``get`` (docs/spec/trust.md#gossip)."""
MAX_DATASETS: Final = 256
"""Datasets in one ``list``."""
MAX_LISTED: Final = 4 * KIB
"""Statement ids in one page of a ``list``: with their datasets' names well below the reply's limit."""

MAX_PRESENCE_ADDRESSES: Final = 8
"""Addresses that a node tells of itself."""
MAX_TAGS: Final = 1024
"""Datasets in a presence; a node with more says so, and is asked when no other is known."""
MAX_PRESENCE_LIFETIME: Final = 7200
"""Seconds. Longer, and the network would send newcomers to nodes that are gone."""
MAX_PRESENCE: Final = 45 + MAX_PRESENCE_ADDRESSES * 256 + 2 + 4 * MAX_TAGS + 64
"""Bytes of a presence, 6,255; one of a node with two addresses and ten datasets has about 200."""
MAX_PRESENCES: Final = 64
"""Presences in one answer."""
MAX_TAGS_ASKED: Final = 16
"""Datasets in one question for peers."""
MAX_PEERS_ASK: Final = 3 + 4 * MAX_TAGS_ASKED + MAX_PRESENCE
"""Bytes of a question for peers."""
MAX_PEERS_ANSWER: Final = 2 + MAX_PRESENCES * (2 + MAX_PRESENCE)
"""Bytes of an answer about peers: 391 KiB at worst."""

MAX_LOOKUP_CONTACTS: Final = 20
"""Nodes in one answer of a lookup: as many as keep a record."""
MAX_LOOKUP_RECORDS: Final = 16
"""Records in one answer of a lookup."""
MAX_RECORD: Final = 45 + MAX_PRESENCE_ADDRESSES * 256 + 2 + 64
"""Bytes of a record of who serves a dataset, 2,159; one with two addresses has about 160."""
MAX_LOOKUP_ASK: Final = 1 + 32 + 19 + MAX_RECORD
"""Bytes of a question of the lookup: one to keep a record, 2,211."""
MAX_LOOKUP_ANSWER: Final = 3 + MAX_LOOKUP_CONTACTS * (19 + 32) + MAX_LOOKUP_RECORDS * (2 + MAX_RECORD)
"""Bytes of an answer of the lookup, 35,599 at worst; usually below 1,000."""

MAX_SWARM_BLOCKS: Final = 64 * KIB
"""Blocks that one map tells of: 8 KiB, more than a mirror takes in one step."""
MAX_SWARM_PEERS: Final = 8
"""Presences of others in one answer."""
MAX_SWARM_ASK: Final = 87 + MAX_SWARM_BLOCKS // 8
"""Bytes of a question of a swarm, 8,279; of a step of 200 blocks, 112."""
MAX_SWARM_ANSWER: Final = 10 + MAX_SWARM_BLOCKS // 4 + MAX_SWARM_PEERS * (2 + MAX_PRESENCE)
"""Bytes of an answer, 66,450 at worst."""

MAX_PIECES_ASK: Final = 77 + 32 + 4096 // 8
"""Bytes of a question about pieces, 621."""
MAX_PIECES_ANSWER: Final = 65 + 32 * 4096
"""Bytes of an answer about pieces: a list of hashes, 131,137 at worst."""
