"""Declares what replication asks of the node that it runs in. ``odfd`` implements these ports.

The layer moves bytes and names who moved them; whether bytes are true is decided behind these ports.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Sequence
from typing import NewType, Protocol

import msgspec

from chain.ids import DatasetId
from chain.multihash import Multihash
from p2p.pace import Pace

PeerId = NewType("PeerId", str)
"""Base58 peer id of libp2p, ``12D3Koo…``; for Ed25519 keys it is the key itself."""


class Topic(enum.Enum):
    """Gossip topics of a network (docs/spec/trust.md#gossip)."""

    HEADS = "heads"
    ATTEST = "attest"
    PROOFS = "proofs"


class Judgement(enum.Enum):
    """The verdict on a gossiped object."""

    ACCEPT = "accept"
    """New and valid: pass it on."""
    IGNORE = "ignore"
    """Known, older or of no interest: drop quietly."""
    REJECT = "reject"
    """Bad bytes: drop, and penalise who sent them."""


class Verdict(msgspec.Struct, frozen=True):
    judgement: Judgement
    """ACCEPT: the mesh receives it."""
    to: frozenset[PeerId] = frozenset()
    """Connected peers that receive it, whether the mesh does or not."""


class TreeHead(msgspec.Struct, frozen=True):
    """A tree over the first ``size`` blocks of a chain, by its root (RFC 6962)."""

    size: int
    root: bytes


class Tip(msgspec.Struct, frozen=True):
    """The end of a chain: its length, and the sha3-256 of its last block, which by its links stands for all."""

    size: int
    last: bytes


class PartsAsk(msgspec.Struct, frozen=True, kw_only=True):
    """Asks which objects of blocks ``start`` to ``start + count`` of a history a peer has, and says what is here."""

    dataset: DatasetId
    tip: Tip
    """Of the history."""
    start: int
    count: int
    have: int
    """Bit ``i`` is set where all objects of block ``start + i`` are here."""


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that a node has of the blocks of a question; bits as there."""

    has: int
    offers: int
    """Of these, what the asker may take here first; a publisher offers to each asker what nobody else has."""
    given: int = 0
    """Bytes that the node gave of it to those who asked so: grows while it gives to others."""


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
    """The chains and objects that we serve. It applies the policy (purpose ``serve``). Called from worker threads."""

    def to(self, peer: PeerId) -> Library:
        """Returns what we serve to this peer, whose key its connection proved; asked for each answer. Costs nothing."""

    def datasets(self, limit: int) -> Sequence[DatasetId]:
        """Lists datasets of which we serve at least one block; at most ``limit`` of them."""

    def size(self, dataset: DatasetId) -> int:
        """Blocks we serve of this chain; 0 when none."""

    def blocks(self, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        """Raw blocks from ``start`` on, at least one if there is one, in all at most ``max_bytes`` (but one block)."""

    def prove(self, dataset: DatasetId, size: int, *, old: int | None = None, index: int | None = None) -> list[bytes]:
        """A proof of RFC 6962 in the tree of ``size`` blocks, of ``old`` or of block ``index``. Raises NotFound."""

    def object_part(self, name: Multihash, offset: int, into: memoryview) -> tuple[int, int]:
        """Fill ``into`` with what there is from ``offset`` on: the object's size, and the bytes that were put there.

        Raises NotFound when we do not have it or do not serve it.
        """

    def parts(self, ask: PartsAsk) -> Parts | None:
        """Tells which objects of some blocks are here and served, also before their blocks are; ``None``: nothing."""

    def pieces(self, ask: PiecesAsk) -> Parts | None:
        """Tells the same of pieces of one object, also before all of it is here. ``None``: nothing of that list."""

    def piece_list(self, dataset: DatasetId, name: Multihash, size: int) -> tuple[bytes, bytes] | None:
        """The hashes of an object's pieces, end to end, and the signature of the publisher's node; ``None``: none."""

    def small_objects(self, names: Sequence[Multihash], largest: int) -> Iterable[bytes]:
        """Whole objects of ``largest`` bytes at most, in order, up to the first that we do not serve so."""


class StatementRef(msgspec.Struct, frozen=True):
    """A signed statement by its id (sid: f1620 + sha3-256 of its payload) and the dataset that it speaks of."""

    sid: Multihash
    dataset: DatasetId


class Concern(msgspec.Struct, frozen=True):
    subjects: tuple[DatasetId, ...]
    """Its dataset, and keys (written likewise) that it speaks of."""
    is_wanted: bool
    """Whether it is of interest here, and others may know that it is."""
    is_bulky: bool = False
    """Whether it is long and can wait: where it is of no interest it takes no room of what is short and urgent."""


class StatementStore(Protocol):
    """Signed statements: heads, authorities, attestations, proofs, bundles. Called from worker threads."""

    def to(self, peer: PeerId) -> StatementStore:
        """Returns what this peer may be sent (``refs``, ``envelope``), if it keeps private statements to itself."""

    def judge(self, topic: Topic, envelope: bytes, sender: PeerId) -> Judgement:
        """Admit a gossiped or pulled envelope: limits, signature, order. Records it when new."""

    def refs(self, datasets: Sequence[DatasetId] | None = None) -> Sequence[StatementRef]:
        """Live statements we pass on, of these datasets and against these keys, or of all."""

    def interests(self) -> Sequence[DatasetId]:
        """Lists datasets and keys (written likewise) of which we want all statements, and may disclose that."""

    def concern(self, topic: Topic, envelope: bytes) -> Concern:
        """Returns the concern of an accepted statement."""

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
    """Whether it gave what proved true, and has not let us wait lately."""
    datasets: int | None = None
    """How many it says that it serves; ``None``: it has not told."""
    network: str = ""
    """Of the address that a connection comes from or goes to, ``203.0.0.0/16``; empty: not connected."""
    networks: tuple[str, ...] = ()
    """Names of networks of ours that a connected peer is in."""


class ReplicationFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the load of the replication layer, and what it dropped, since the network was joined."""

    connected: int = 0
    """Peers."""
    known: int = 0
    """Peers that were connected or announced."""
    unread: int = 0
    """Statements that were not looked at, for they were too many at once."""
    kept_back: int = 0
    """Statements that were not passed on, for they were too many at once."""
    unwanted: int = 0
    """Statements forwarded at most to those that need them, as this node does not."""
    peers_unread: int = 0
    """Number of peers' own presences that were not read."""
    lookup_nodes: int = 0
    """Nodes in the table of the lookup (ADR 59),"""
    lookup_records: int = 0
    """records of holders that are kept for others,"""
    lookup_refused: int = 0
    """questions of peers that asked too often,"""
    lookup_forged: int = 0
    """and records in answers that nobody signed."""
    judging: int = 0
    """Statements that wait to be looked at."""
    answering: int = 0
    """Answers to peers that are under way."""
    relays: int = 0
    """Relays by which others may come to this node."""
    reserved: int = 0
    """Peers to which others may come by this node,"""
    dial_backs_refused: int = 0
    """Questions of others whether they can be dialled, for which nothing was dialled."""
    punched: int = 0
    """Peers that came by a relay and were connected directly since,"""
    unpunched: int = 0
    """and upgrades that failed."""
    not_dialled: int = 0
    """Addresses that peers named for a hole punch and that were not dialled."""
    circuits: int = 0
    """and connections that it carries to them."""


class Replication(Protocol):
    """The port of the replication layer for the node."""

    @property
    def peer_id(self) -> PeerId: ...

    def addresses(self) -> Sequence[str]: ...

    async def connect(self, multiaddr: str) -> PeerId:
        """Raises Remote."""

    def peers(self) -> Sequence[PeerView]: ...

    async def announce(self, topic: Topic, envelope: bytes) -> None: ...

    async def pull_statements(
        self, peer: PeerId, datasets: Sequence[DatasetId] | None = None, *, private: bool = False
    ) -> int:
        """Runs anti-entropy with one peer: compares sums, fetches missing statements, stores them, and counts them.

        ``private``: what is told of these datasets stays here, and the peer may tell what it shares with this node.
        """

    async def chain_size(self, peer: PeerId, dataset: DatasetId) -> int: ...

    async def object_size(self, peer: PeerId, name: Multihash) -> int | None:
        """Asks ``peer`` for an object's size in bytes; ``None`` when it does not serve it. Raises Remote."""

    async def fetch_blocks(self, peer: PeerId, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        """One range answer, within limits, split into raw blocks, unchecked. Raises Remote."""

    async def pull_chain(
        self, peers: Sequence[PeerId], dataset: DatasetId, size: int, sink: ChainSink, pace: Pace | None = None
    ) -> None:
        """Fill ``sink`` up to ``size`` blocks from any of ``peers``, many ranges under way at once, then finish it.

        ``pace``: a cap of the caller's own, under that of the node; so for objects.

        Raises Remote, naming peers and reasons, when they cannot give blocks that the sink takes; what it took stays.
        A peer is to blame for wrong blocks only if it shows to hold the right ones: it may hold another history.
        """

    async def holds(self, peer: PeerId, dataset: DatasetId, tip: Tip) -> bool:
        """Whether ``peer`` shows to hold this very chain; ``False`` too when it does not answer."""

    async def prove_prefix(self, peers: Sequence[PeerId], dataset: DatasetId, old: TreeHead, signed: TreeHead) -> bool:
        """Whether any of ``peers`` proves that the tree ``old`` is the beginning of the tree ``signed``.

        ``False`` when what they told proves nothing: then ``old`` is to be doubted. Raises Remote when none answered.
        """

    async def fetch_object(
        self, peers: Sequence[PeerId], name: Multihash, size: int, sink: ObjectSink, pace: Pace | None = None
    ) -> None:
        """Fill ``sink`` from any of ``peers``, resuming at ``sink.received``; the hash is checked before it returns.

        A sink with a ``stop`` takes the bytes up to it.

        Raises Remote, naming the peer, when no peer could give the right bytes.
        """

    async def fetch_small(
        self, peers: Sequence[PeerId], names: Sequence[Multihash], sink: PackSink, pace: Pace | None = None
    ) -> None:
        """Fill ``sink`` with small objects from any of ``peers``, in the order of ``names``, many in each answer.

        Goes on at ``sink.received``. Raises Remote, naming the peers, when they could not give all; what came stays.
        """

    async def ask_parts(self, peer: PeerId, ask: PartsAsk) -> Parts | None:
        """Asks a peer which objects it has; ``None``: none that it tells of. Raises Remote, also without the protocol.

        Others whom it names, and who fetch the same, are met.
        """

    async def ask_pieces(self, peer: PeerId, ask: PiecesAsk) -> Parts | None:
        """Asks a peer which pieces of an object it has. As ``ask_parts``."""

    async def piece_list(
        self, peer: PeerId, dataset: DatasetId, name: Multihash, size: int
    ) -> tuple[bytes, bytes] | None:
        """The hashes that a peer tells of an object's pieces, and a signature, unchecked. Raises Remote."""

    async def seek(self, dataset: DatasetId, beyond: Collection[str] = ()) -> int:
        """Connects to some peers that claim to serve ``dataset``, and counts the new connections.

        ``beyond``: networks as in ``PeerView`` of which enough is known: then one peer each of some others is met.
        Whether they do serve it is for ``chain_size`` to find out. Costs a few dials at most, and never raises Remote.
        """

    def penalise(self, peer: PeerId, reason: str, weight: float) -> None: ...


class ObjectSink(Protocol):
    """A partial file: append-only, never visible under its name until it is whole and its hash fits."""

    @property
    def received(self) -> int: ...

    @property
    def stop(self) -> int | None:
        """Bytes of the object after which it wants no more; ``None``: it wants all."""

    def write(self, data: bytes | memoryview) -> None: ...

    def finish(self) -> None:
        """Check and publish. Raises Invalid when the bytes do not hash to the name; the partial file is then gone."""

    def abandon(self) -> None:
        """Throw the partial bytes away."""


class PackSink(Protocol):
    """The receiver of small objects, in the order of the request. Called from worker threads, one call at a time."""

    @property
    def received(self) -> int:
        """How many are here and good."""

    def take(self, objects: Sequence[bytes]) -> None:
        """Check and keep the next ones. Raises Invalid for the first that is not what its name says."""


class ChainSink(Protocol):
    """The receiver of pulled blocks, which verifies them in order. Called from worker threads, one call at a time."""

    @property
    def size(self) -> int:
        """The next block wanted. After Invalid it may be lower than before: blocks that were not yet sure are gone."""

    @property
    def tip(self) -> Tip:
        """The signed end of the chain that is fetched."""

    def append(self, peer: PeerId, start: int, blocks: Sequence[bytes]) -> None:
        """Check and keep raw blocks ``start``, … that ``peer`` gave. Raises Invalid."""

    def finish(self) -> None:
        """Checks the whole against the signed head. Raises Invalid."""
