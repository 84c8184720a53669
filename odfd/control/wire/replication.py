"""Values about mirrors, networks, peers, and datasets published to others or on IPFS."""

from __future__ import annotations

from typing import Literal

import msgspec

from odfd.control.wire.value import Request, Value


class Share(Value, frozen=True, kw_only=True):
    """The held share of something."""

    have: int
    want: int


class MirrorRequest(Request, frozen=True, kw_only=True):
    source: str
    """``did:odf:…``, or where it is published: ``https://…``, ``ipns://NAME`` or ``ipfs://CID``."""
    as_name: str | None = None
    network: str | None = None
    want: Literal["chain", "data"] = "data"
    keep: str | None = None
    """How much of the data: ``30d`` and ``10GiB`` for the newest, ``30d,10GiB`` for both bounds; ``None``: all."""
    priority: int = 0
    """Where ``limits.mirror-bytes`` is reached, data of mirrors of a lower one is let go for it."""
    rate: str | None = None
    """Bytes a second that it may take of the line, like ``2MiB``, under ``p2p.download-rate``; ``None``: no cap."""
    use: str | None = None
    """An expression of policy, for using it here; ``None``: the node's."""
    serve: str | None = None
    expect: str | None = None
    """Hash that the chain must contain: a head learned from a person, not from the network."""
    via: str | None = None
    """Look there too: a place as in ``source``, or ``ipfs`` for the name that is made of the dataset's key."""
    private: bool | None = None
    """Whether nothing of it is said or given to others; ``None``: it is of what comes from a web server."""
    peers: tuple[str, ...] = ()
    """Who share it with this node: these alone are asked for it, and it is private here."""


class Contact(Value, frozen=True, kw_only=True):
    """How a dataset of others was met for the first time."""

    by: Literal["hash", "witnesses", "networks", "first-use"]
    means: str
    advice: str = ""
    """What to do to be surer; empty: nothing more."""


class NetworkContact(Value, frozen=True, kw_only=True):
    """How a network was met, and what its mirrored datasets were met by."""

    by: Literal["invitation", "addresses"]
    invited_by: str | None = None
    """The key that signed the invitation."""
    means: str
    address_blocks: int = 0
    """Of connected peers: /16 of IPv4, /32 of IPv6."""
    met: dict[str, int] = msgspec.field(default_factory=dict)
    """Mirrored datasets, by how they were met."""
    advice: tuple[str, ...] = ()


MirrorState = Literal["syncing", "current", "waiting", "stalled", "refused", "failed", "paused"]


class MirrorView(Value, frozen=True, kw_only=True):
    name: str
    id: str
    state: MirrorState
    want: str = "data"
    keep: str | None = None
    priority: int = 0
    rate: str | None = None
    held_from: int = 0
    """The block from which on data is here, as far as it came."""
    held: int = 0
    """Bytes of data that lie on disk for it."""
    network: str | None = None
    use: str | None = None
    serve: str | None = None
    serving: bool = False
    blocks: Share | None = None
    slices: Share | None = None
    """Slices, checkpoints and linked objects: those held, and those that are held or that a pass has still to bring."""
    bytes: Share | None = None
    """Of the newest pass alone."""
    peers: int = 0
    message: str = ""
    via: str | None = None
    """Where it is published and looked for too."""
    shared_by: tuple[str, ...] = ()
    """Peers that share it with this node; these alone are asked for it."""
    contact: Contact | None = None
    """How it was met; null until its first blocks are here."""
    node: PeerName | None = None
    """The node that publishes it, where that node signed so on a card."""


class NetworkRequest(Request, frozen=True, kw_only=True):
    name: str
    bootstrap: tuple[str, ...] = ()
    """Multiaddrs with ``/p2p/…``."""
    invitation: str | None = None
    """To this network, in place of ``bootstrap``: says more than names and addresses (``odfd.network.invitation``)."""


class InvitationRequest(Request, frozen=True, kw_only=True):
    seconds: int
    """How long it is good for."""
    uses: int | None = None
    """With a token, which so many nodes may redeem at this node; null: without one, for everybody."""


class InvitationText(Request, frozen=True, kw_only=True):
    """An invitation to inspect before joining."""

    text: str
    """The line, or the address of a file that holds it: ``https://example.org`` for its well-known path."""


class InvitationView(Value, frozen=True, kw_only=True):
    """An invitation to a network, as one line."""

    text: str
    network: str
    bootstrap: tuple[str, ...]
    by: str
    expires_at: str
    policy_key: str | None = None
    """The key of the network's policies; ``None``: there are none."""
    rules: tuple[str, ...] = ()
    """The newest rules that the inviter knows, a line each."""
    uses: int | None = None
    """By so many nodes its token may be redeemed at the node that invites; null: it has none."""


class InvitationState(Value, frozen=True, kw_only=True):
    """An invitation with a token that this node made."""

    id: str
    network: str
    state: str
    """``open``, ``used``, ``expired`` or ``revoked``."""
    uses: int
    nodes: tuple[PeerName, ...] = ()
    """Those that redeemed it."""
    made_at: str
    expires_at: str


class NetworkView(Value, frozen=True, kw_only=True):
    name: str
    bootstrap: tuple[str, ...] = ()
    peers: int = 0
    datasets: tuple[Announced, ...] = ()
    """What is announced in it."""
    policy_key: str | None = None
    """Whose policies hold in it, as the invitation said."""
    contact: NetworkContact | None = None
    members: tuple[PeerName, ...] = ()
    """Connected peers in it."""
    received_rate: float = 0.0
    """Bytes that come from these a second, of the last eight seconds, whatever network they are of."""
    sent_rate: float = 0.0
    swarm: SwarmCounts | None = None
    """What was exchanged with nodes that mirror the same, in all networks; absent: nothing."""


class SwarmCounts(Value, frozen=True, kw_only=True):
    """Counts what nodes that mirror the same dataset at once gave each other, since the node started."""

    from_publishers: int = 0
    """Pieces that their publishers gave to this node,"""
    from_mirrors: int = 0
    """and other mirrors."""
    bytes_from_publishers: int = 0
    bytes_from_mirrors: int = 0
    refused: int = 0
    """Pieces that a peer offered and did not give, or gave false."""
    offered: int = 0
    """Pieces of this node's own datasets that it offered, each to one peer at a time."""
    bytes_given: int = 0
    """Bytes of its own datasets that it gave to those who mirror them at once."""


class Announced(Value, frozen=True, kw_only=True):
    """A dataset with announced signed heads, held here or not."""

    id: str
    name: str | None = None
    blocks: int = 0
    head: str | None = None
    signed_at: str | None = None
    peers: int = 0
    held: bool = False
    called: str | None = None
    """What its publisher calls it."""
    publisher: str | None = None
    """What the publisher's node calls itself."""
    node: PeerName | None = None
    """The node that publishes it, where that node signed so."""
    contact: Contact | None = None
    """How it was met, where it is mirrored."""


class CardColumn(Value, frozen=True, kw_only=True):
    name: str
    type: str


class CardView(Value, frozen=True, kw_only=True):
    """The publisher's description of a dataset, and how far this node relies on it."""

    id: str
    name: str
    """What its publisher calls it."""
    local_name: str | None = None
    """What it is called here, where it is held."""
    publisher: str = ""
    """What the publisher's node calls itself: nothing checks it."""
    node: PeerName | None = None
    """The node that publishes it, where that node signed so."""
    author: str
    """The key that signed the card: a writer of the dataset."""
    kind: str
    standing: str
    """``reproduced``, ``attested 2/3``, ``observed 1/2``, ``data``, where it is held; ``attested 1/3`` by validators
    that count here, ``accused`` by one of them, ``forked``, or ``announced``: nobody who counts here vouches for it."""
    peers: int = 0
    """Connected peers that say they serve it."""
    places: int = 0
    """Blocks of addresses that these are in (/16 of IPv4, /32 of IPv6): one operator may hold all of a block."""
    namesakes: int = 0
    """Other datasets whose publishers call them the same."""
    description: str = ""
    keywords: tuple[str, ...] = ()
    license: str = ""
    license_url: str = ""
    columns: tuple[CardColumn, ...] = ()
    more_columns: int = 0
    inputs: tuple[str, ...] = ()
    portal: str = ""
    """The rule by which it publishes rows of a private dataset; empty: it does not."""
    blocks: int = 0
    records: int = 0
    created_at: str
    updated_at: str
    watermark: str | None = None
    signed_at: str
    expires_at: str


class SearchRequest(Request, frozen=True, kw_only=True):
    """A search; empty fields do not restrict it."""

    words: str = ""
    """All of them are in the card, or begin a word that is."""
    license: str = ""
    """The short name of a licence."""
    column: str = ""
    """The name of a column."""
    updated_within: int | None = None
    """Seconds."""
    attested: int = 0
    """By so many groups of validators that count here, at least."""
    limit: int = 20


class SearchView(Value, frozen=True, kw_only=True):
    """Cards that fit a search, the best first."""

    found: tuple[CardView, ...]
    more: int = 0
    """That fit too, and are not listed."""
    cards: int = 0
    """Cards that were looked through."""


class PeerName(Value, frozen=True, kw_only=True):
    """A node, and what its operator calls it."""

    peer_id: str
    name: str | None = None
    """From its card, which nothing checks; absent: no card of it is known here."""
    alike: int = 0
    """Other nodes known here whose names look the same: compare the ids."""


class PeerInfo(Value, frozen=True, kw_only=True):
    peer_id: str
    name: str | None = None
    """What its operator calls it, which nothing checks; absent: no card of it is known here."""
    contact: str = ""
    """Where its operator says to be reached."""
    about: str = ""
    """What its operator says of it."""
    alike: int = 0
    """Other nodes known here whose names look the same: compare the ids."""
    addresses: tuple[str, ...] = ()
    connected: bool = False
    score: float = 0.0
    last_seen: str | None = None
    blocked: bool = False
    datasets: int | None = None
    """How many it says that it serves; absent: it has not told."""
    received: int | None = None
    """Bytes that came over its open connections; absent: there is none."""
    sent: int | None = None
    received_rate: float | None = None
    """Bytes that come a second, of the last eight seconds; what a relay carries for others counts."""
    sent_rate: float | None = None
    holds: tuple[str, ...] | None = None
    """Names of datasets of this node that it says it serves, if asked for (``holds``): a thousand at the most."""


class ConnectRequest(Request, frozen=True, kw_only=True):
    multiaddr: str


class VisibilityRequest(Request, frozen=True, kw_only=True):
    """A change of visibility of either ``refs`` or ``all``."""

    refs: tuple[str, ...] = ()
    all: bool = False
    to: tuple[str, ...] = ()
    """Networks to which datasets are published, and to nobody else; none: to everybody."""
    """Every dataset that is here now."""


class ShareRequest(Request, frozen=True, kw_only=True):
    """A change of shares; with neither field, a list of them."""

    ref: str
    peers: tuple[str, ...] = ()
    """Ids of peers, their keys (``did:key:…``), or beginnings of ids that are known here."""
    revoke: tuple[str, ...] = ()
    """Those that get nothing more of it."""


class VisibilityView(Value, frozen=True, kw_only=True):
    """The resulting visibility of one dataset."""

    name: str
    id: str
    published: bool
    """Whether anything of it is said or given to others."""
    shared_with: tuple[str, ...] = ()
    """Peers that get it though it is private."""
    changed: bool
    notes: tuple[str, ...] = ()
    networks: tuple[str, ...] | None = None
    """Of what is published: the networks that it is limited to; ``None``: it is not limited."""
    """What is to know beside, for people."""


class PublishRequest(Request, frozen=True, kw_only=True):
    ref: str
    once: bool = False
    """Do not keep it up to date."""
    delegation: str | None = None
    """Base64 of an IPNS record, signed by the dataset's own key, that points to the name this node signs."""


class PublicationView(Value, frozen=True, kw_only=True):
    """The result of the task ``publish``: what is on IPFS, and what was added now."""

    ref: str
    dataset_id: str
    root: str
    """``/ipfs/CID`` of the folder."""
    name: str | None = None
    """IPNS name that points to it, of the key that signs here; ``None``: another owner's dataset."""
    home: str
    """The name that is made of the dataset's own key: where others look."""
    head: str
    blocks: int
    at: str
    """When it was published or its record renewed."""
    expires: str | None = None
    """Until when the name resolves without a renewal."""
    standing: bool = True
    """It is kept up to date."""
    added_blocks: int = 0
    added_objects: int = 0
    added_bytes: int = 0
    message: str = ""
    """Why it is not up to date."""
