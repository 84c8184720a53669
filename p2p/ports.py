"""Declares the interfaces (ports) that replication uses of the node around it; ``odfd`` implements them.

The replication layer moves bytes and names who sent them; whether bytes are true is decided behind these ports.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NewType, Protocol, TypeAlias

import msgspec

from chain.errors import Remote
from chain.ids import DatasetId
from chain.multihash import Multihash

PeerId = NewType("PeerId", str)
"""Base58 peer id of libp2p, ``12D3Koo…``; for Ed25519 keys it is the key itself."""


class Topic(enum.Enum):
    """Gossip topics of a network (docs/spec/trust.md#gossip)."""

    HEADS = "heads"
    ATTEST = "attest"
    PROOFS = "proofs"


class Judgement(enum.Enum):
    """The verdict on a gossiped message."""

    ACCEPT = "accept"
    """New and valid: it is passed on."""
    IGNORE = "ignore"
    """Known, outdated or of no interest: it is dropped without a penalty."""
    REJECT = "reject"
    """Invalid bytes: it is dropped, and the sender is penalised."""


class GossipVerdict(msgspec.Struct, frozen=True):
    judgement: Judgement
    """With ACCEPT the gossip mesh receives it."""
    to: frozenset[PeerId] = frozenset()
    """Connected peers that receive it in any case, even if the mesh does not."""


class TreeRoot(msgspec.Struct, frozen=True):
    """The size of a chain and the root of the tree over its first ``size`` blocks (RFC 6962)."""

    size: int
    root: bytes


class Tip(msgspec.Struct, frozen=True):
    """The end of a chain: its length, and the sha3-256 of its last block, whose links fix all blocks before it."""

    size: int
    last: bytes


class PartsAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A question: which objects of blocks ``start`` to ``start + count`` of a history a peer has; says what is here."""

    dataset: DatasetId
    tip: Tip
    """The end of that history."""
    start: int
    count: int
    have: int
    """Bit ``i`` is set where all objects of block ``start + i`` are here."""


class HeldParts(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``PartsAsk``: the objects that a node has of these blocks, as bits in the same order."""

    has: int
    offers: int
    """The bits that the asker may fetch here first; a publisher offers each asker objects that nobody else has."""
    given: int = 0
    """Bytes of the dataset that the node gave to peers that asked this way; grows as long as it gives to others."""


class PiecesAsk(msgspec.Struct, frozen=True, kw_only=True):
    """Asks which pieces of a large object a peer has, by the list of hashes with this ``root``."""

    dataset: DatasetId
    """That names it."""
    name: Multihash
    size: int
    root: bytes
    have: int
    """Bit ``i`` is set where piece ``i`` is here."""


class Library(Protocol):
    """The chains and objects that this node serves, under the policy for ``serve``. Called from worker threads."""

    def to(self, peer: PeerId) -> Library:
        """Returns what this node serves to a peer whose key its connection proved. Cheap: called for each answer."""

    def datasets(self, limit: int) -> Sequence[DatasetId]:
        """Lists datasets of which we serve at least one block; at most ``limit`` of them."""

    def size(self, dataset: DatasetId) -> int:
        """Returns how many blocks of this chain are served; 0 if none."""

    def blocks(self, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        """Returns raw blocks from ``start`` on, at most ``max_bytes`` in total, but at least one if there is one."""

    def prove(self, dataset: DatasetId, size: int, *, old: int | None = None, index: int | None = None) -> list[bytes]:
        """Returns an RFC 6962 proof in the tree over ``size`` blocks:
        of its beginning of ``old`` blocks, or of block ``index``.

        Raises NotFound.
        """

    def object_part(self, name: Multihash, offset: int, into: memoryview) -> tuple[int, int]:
        """Fills ``into`` with bytes of an object from ``offset`` on;
        returns the object's size and how many bytes were put there.

        Raises NotFound if this node does not have the object or does not serve it.
        """

    def parts(self, ask: PartsAsk) -> HeldParts | None:
        """Returns which objects of some blocks are here and served, even before their blocks; ``None`` if none is."""

    def pieces(self, ask: PiecesAsk) -> HeldParts | None:
        """Tells the same of pieces of one object, also before all of it is here. ``None``: nothing of that list."""

    def piece_list(self, dataset: DatasetId, name: Multihash, size: int) -> tuple[bytes, bytes] | None:
        """The hashes of an object's pieces, end to end, and the signature of the publisher's node; ``None``: none."""

    def small_objects(self, names: Sequence[Multihash], largest: int) -> Iterable[bytes]:
        """Yields whole objects of at most ``largest`` bytes in order;
        stops at the first that is not served or is larger."""


class StatementRef(msgspec.Struct, frozen=True):
    """A signed statement by its id (sid: f1620 + sha3-256 of its payload) and the dataset that it is about."""

    sid: Multihash
    dataset: DatasetId


class Concern(msgspec.Struct, frozen=True):
    subjects: tuple[DatasetId, ...]
    """Its dataset, and the keys (written like datasets) that it is about."""
    is_wanted: bool
    """Whether this node wants it, and others may know that."""
    is_bulky: bool = False
    """Whether it is long and can wait: if nobody here wants it, it takes no room from short and urgent ones."""


class StatementStore(Protocol):
    """Stores signed statements: heads, authorities, attestations, proofs, bundles. Called from worker threads."""

    def to(self, peer: PeerId) -> StatementStore:
        """Returns the view (``refs``, ``envelope``) that may be sent to a peer that does not pass private statements
        on."""

    def judge(self, topic: Topic, envelope: bytes, sender: PeerId) -> Judgement:
        """Checks a gossiped or pulled envelope (limits, signature, order), and records it if it is new."""

    def refs(self, datasets: Sequence[DatasetId] | None = None) -> Sequence[StatementRef]:
        """Returns the live statements that this node passes on:
        of these datasets and against these keys, or all of them."""

    def interests(self) -> Sequence[DatasetId]:
        """Lists the datasets and keys (written likewise) of which this node wants all statements,
        and may say so to others."""

    def concern(self, topic: Topic, envelope: bytes) -> Concern:
        """Returns which datasets and keys an accepted statement is about, and whether it is wanted here."""

    def envelope(self, sid: Multihash) -> tuple[Topic, bytes] | None: ...


class PeerView(msgspec.Struct, frozen=True, kw_only=True):
    """A peer as ``odfctl peer list`` shows it."""

    peer: PeerId
    addresses: tuple[str, ...] = ()
    connected: bool = False
    score: float = 0.0
    last_seen: int | None = None
    """Nanoseconds since the epoch."""
    blocked: bool = False
    proven: bool = False
    """Whether it gave data that proved true, and has not been slow lately."""
    datasets: int | None = None
    """The number of datasets that it says it serves; ``None``: it has not said."""
    network: str = ""
    """The network of the address at the other end of a connection, ``203.0.0.0/16``; empty: not connected."""
    networks: tuple[str, ...] = ()
    """Names of our networks that a connected peer is in."""


class ReplicationFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The load of the replication layer, and counts of what it dropped, since the network was joined."""

    connected: int = 0
    """Connected peers."""
    known: int = 0
    """Peers that were connected or announced."""
    unread: int = 0
    """Statements that were dropped unread because too many came at once."""
    kept_back: int = 0
    """Statements that were not passed on because too many came at once."""
    unwanted: int = 0
    """Statements that this node does not need; they are forwarded at most to peers that do."""
    peers_unread: int = 0
    """Presences of peers that were dropped unread."""
    lookup_nodes: int = 0
    """Nodes in the routing table of the lookup (ADR 59)."""
    lookup_records: int = 0
    """Records of holders that this node keeps for the lookup."""
    lookup_refused: int = 0
    """Lookup questions refused because a peer asked too often."""
    lookup_forged: int = 0
    """Records in lookup answers that had no valid signature."""
    judging: int = 0
    """Statements that wait to be checked."""
    answering: int = 0
    """Answers to peers that are under way."""
    relays: int = 0
    """Relays through which other peers can reach this node."""
    reserved: int = 0
    """Peers that others can reach through this node."""
    dial_backs_refused: int = 0
    """Requests of others to be dialled back for which nothing was dialled."""
    punched: int = 0
    """Peers that came through a relay and have been connected directly since."""
    unpunched: int = 0
    """Attempts to connect such peers directly that failed."""
    not_dialled: int = 0
    """Addresses that peers named for a hole punch and that were not dialled."""
    circuits: int = 0
    """Circuits that this node relays at present."""


class ObjectSink(Protocol):
    """A partial file: append-only, not visible under its name until it is complete and its hash is right."""

    @property
    def received(self) -> int: ...

    @property
    def stop(self) -> int | None:
        """Bytes of the object after which it wants no more; ``None``: it wants all."""

    def write(self, data: bytes | memoryview) -> None: ...

    def finish(self) -> None:
        """Checks the hash and publishes the file. Raises Invalid and deletes the partial file if the hash is wrong."""

    def abandon(self) -> None:
        """Deletes the partial file."""


class PackSink(Protocol):
    """Receives small objects in the order of the request. Called from worker threads, one call at a time."""

    @property
    def received(self) -> int:
        """Returns how many objects have been received and checked."""

    def take(self, objects: Sequence[bytes]) -> None:
        """Checks and keeps the next objects. Raises Invalid at the first whose hash is not its name."""


class ChainSink(Protocol):
    """Receives the blocks of a chain and verifies them in order. Called from worker threads, one call at a time."""

    @property
    def size(self) -> int:
        """Returns the number of the next block wanted. It may be lower after Invalid: doubtful blocks were removed."""

    @property
    def tip(self) -> Tip:
        """Returns the signed end of the chain that is being fetched."""

    def append(self, peer: PeerId, start: int, blocks: Sequence[bytes]) -> None:
        """Checks and keeps raw blocks ``start``, ``start + 1``, … that ``peer`` gave. Raises Invalid."""

    def finish(self) -> None:
        """Checks the whole chain against the signed head. Raises Invalid."""


FilePart: TypeAlias = bytes | memoryview
"""A part of a file: bytes, or a view of the memory in which a library received them."""
Content: TypeAlias = AbstractAsyncContextManager[AsyncIterator[FilePart]]
"""A context manager that yields the content of a file in parts, and gives its connection back at the end of the block.
"""


class FileMissing(Remote):
    """There is no such file."""


class RemoteFiles(Protocol):
    """Reads published files. All methods raise Remote if there is no valid answer."""

    async def size_of(self, content: str) -> int | None:
        """Returns the stated size of a file in bytes; ``None``: there is no such file."""

    async def cat(self, content: str, limit: int) -> bytes | None:
        """Reads a small file; ``None`` if there is none. Raises Remote if it has more than ``limit`` bytes."""

    def open(self, content: str, offset: int = 0) -> Content:
        """Opens a file from byte ``offset`` on. Raises FileMissing if there is no such file."""
