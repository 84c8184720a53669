"""Defines values about mirrors, networks, peers, and datasets published to others or on IPFS."""

from __future__ import annotations

from typing import Literal

import msgspec

from odfd.control.wire.cards import CardColumn, CardRows, CardWords
from odfd.control.wire.value import Problem, Request, Value


class Share(Value, frozen=True, kw_only=True):
    """The held share of something."""

    have: int
    want: int


class MirrorRequest(Request, frozen=True, kw_only=True):
    source: str
    """``did:odf:…``, or the place where it is published: ``https://…``, ``ipns://NAME`` or ``ipfs://CID``."""
    as_name: str | None = None
    network: str | None = None
    want: Literal["chain", "data"] = "data"
    keep: str | None = None
    """Part of the data to keep: ``30d`` or ``10GiB`` for the newest, ``30d,10GiB`` for both bounds; ``None``: all."""
    priority: int = 0
    """Priority: when ``limits.mirror-bytes`` is reached, data of mirrors with a lower one is dropped first."""
    rate: str | None = None
    """Most bytes a second that it may use, like ``2MiB``, within ``p2p.download-rate``; ``None``: no cap."""
    use: str | None = None
    """Policy expression for its use here; ``None``: the node's."""
    serve: str | None = None
    expect: str | None = None
    """Hash that the chain must contain: a head learned from a person, not from the network."""
    via: str | None = None
    """Further place to look: as in ``source``, or ``ipfs`` for the name made of the dataset's key."""
    private: bool | None = None
    """Whether nothing of it is announced or served to others; ``None``: yes if it comes from a web server."""
    peers: tuple[str, ...] = ()
    """Peers that share it with this node: only these are asked for it, and it is private here."""


class Contact(Value, frozen=True, kw_only=True):
    """How a dataset of others was met for the first time."""

    by: Literal["hash", "witnesses", "networks", "first-use"]
    means: str
    advice: str = ""
    """Advice for more certainty; empty: there is none."""


class NetworkContact(Value, frozen=True, kw_only=True):
    """How a network was met, and what its mirrored datasets were met by."""

    by: Literal["invitation", "addresses"]
    invited_by: str | None = None
    """The key that signed the invitation."""
    means: str
    address_blocks: int = 0
    """Number of subnets of connected peers: /16 of IPv4, /32 of IPv6."""
    met: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of mirrored datasets by kind of first contact."""
    advice: tuple[str, ...] = ()


class MirrorState(Value, frozen=True, kw_only=True):
    """The present state of a Mirror, as this node sees it."""

    state: Literal["syncing", "current", "waiting", "stalled", "refused", "failed", "paused"] = "waiting"
    held_from: int = 0
    """The first block whose data is here, as far as it was fetched."""
    held: int = 0
    """Bytes of its data on disk."""
    use: str = ""
    """What must hold before it is used here, by its spec or the policy in force; and before it is served to others."""
    serve: str = ""
    serving: bool = False
    blocks: Share | None = None
    slices: Share | None = None
    """Slices, checkpoints and linked objects: those held, and those held or still to be fetched in a pass."""
    bytes: Share | None = None
    """Bytes of the newest pass alone."""
    peers: int = 0
    """Number of connected peers that serve it."""
    message: str = ""
    contact: Contact | None = None
    """How it was first met; absent until its first blocks are here."""
    node: PeerName | None = None
    """The node that publishes it, if that node signed so on a card."""
    withdrawn_at: str | None = None
    """Time at which its publisher signed that it shows the dataset no more; absent: it did not."""
    lack: Problem | None = None
    """Why the command that added it stopped waiting, with what it tried; only in that command's result."""


class NetworkRequest(Request, frozen=True, kw_only=True):
    name: str
    bootstrap: tuple[str, ...] = ()
    """Multiaddrs with ``/p2p/…``."""
    invitation: str | None = None
    """An invitation instead of ``bootstrap``: holds more than names and addresses (``odfd.network.invitation``)."""


class InvitationRequest(Request, frozen=True, kw_only=True):
    seconds: int
    """Seconds until it expires."""
    uses: int | None = None
    """Number of nodes that may redeem its token at this node; null: no token, valid for everybody."""


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
    """Number of nodes that may redeem its token at the inviting node; null: it has no token."""


class InvitationState(Value, frozen=True, kw_only=True):
    """An invitation with a token that this node made."""

    id: str
    network: str
    state: str
    """``open``, ``used``, ``expired`` or ``revoked``."""
    uses: int
    nodes: tuple[PeerName, ...] = ()
    """Nodes that redeemed it."""
    made_at: str
    expires_at: str


class NetworkState(Value, frozen=True, kw_only=True):
    """The present state of a Network, as this node sees it."""

    peers: int = 0
    datasets: tuple[Announced, ...] = ()
    """Datasets that are announced in it."""
    contact: NetworkContact | None = None
    members: tuple[PeerName, ...] = ()
    """Connected peers in it."""
    received_rate: float = 0.0
    """Bytes received from these a second, over the last eight seconds, for any network."""
    sent_rate: float = 0.0
    swarm: SwarmFigures | None = None
    """What was exchanged with nodes that mirror the same, in all networks; absent: nothing."""
    trouble: Problem | None = None
    """Why this node takes no part in it now, though it joined it: it cannot listen."""
    note: str = ""
    """What a person should know of the addresses at which this node listens."""


class SwarmFigures(Value, frozen=True, kw_only=True):
    """Counts what nodes that mirror the same dataset at once gave each other, since the node started."""

    from_publishers: int = 0
    """Pieces that their publishers gave to this node."""
    from_mirrors: int = 0
    """Pieces that other mirrors gave to it."""
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
    """Its name at its publisher."""
    publisher: str | None = None
    """The name that the publisher's node gives itself."""
    node: PeerName | None = None
    """The node that publishes it, if that node signed so."""
    contact: Contact | None = None
    """How it was first met, if it is mirrored."""


class CardView(Value, frozen=True, kw_only=True):
    """The publisher's description of a dataset, and its trust level here."""

    id: str
    name: str
    """Its name at its publisher."""
    local_name: str | None = None
    """Its local name, if it is stored here."""
    publisher: str = ""
    """The name that the publisher's node gives itself, unchecked."""
    node: PeerName | None = None
    """The node that publishes it, if that node signed so."""
    author: str
    """The key that signed the card: a writer of the dataset."""
    kind: str
    standing: str
    """Its trust level here.

    If stored here ``reproduced``, ``attested 2/3``, ``observed 1/2`` or ``data``; else ``attested 1/3`` by validators
    that count here, ``accused`` by one of them, ``forked``, or ``announced``: nobody who counts here vouches for it.
    """
    peers: int = 0
    """Number of connected peers that say they serve it."""
    places: int = 0
    """Number of their subnets (/16 of IPv4, /32 of IPv6): one operator may own a whole subnet."""
    namesakes: int = 0
    """Number of other datasets with the same name at their publishers."""
    description: str = ""
    keywords: tuple[str, ...] = ()
    license: str = ""
    license_url: str = ""
    columns: tuple[CardColumn, ...] = ()
    more_columns: int = 0
    inputs: tuple[str, ...] = ()
    portal: str = ""
    """The rule by which it publishes rows of a private dataset; empty: it is no portal."""
    shards: tuple[str, ...] = ()
    """Ids of all chains with its rows, if several; a mirror of the first gets all."""
    shard_by: tuple[str, ...] = ()
    """The columns that decide the shard of a row."""
    blocks: int = 0
    records: int = 0
    created_at: str
    updated_at: str
    watermark: str | None = None
    first_event: str | None = None
    """The least event time of its rows, by the statistics of its slices; ``None``: not known."""
    last_event: str | None = None
    bytes: int = 0
    """Size of its slices; 0: not known."""
    update_interval: int = 0
    """Usual number of seconds between its newest blocks with rows; 0: not known."""
    words: CardWords = CardWords()
    """What its publisher says of it on purpose."""
    signed_at: str
    expires_at: str
    sample: CardRows | None = None
    """Rows that its publisher shows, which nothing checks before a mirror has them; ``None``: it shows none."""


class SearchRequest(Request, frozen=True, kw_only=True):
    """A search; empty fields do not restrict it."""

    words: str = ""
    """Words that must all be in the card, or begin a word of it."""
    license: str = ""
    """The short name of a licence."""
    column: str = ""
    """The name of a column."""
    updated_within: int | None = None
    """Seconds since the last update, at most."""
    attested: int = 0
    """Number of groups of validators that must have attested it, of those that count here."""
    standing: tuple[str, ...] = ()
    """First words of standings, one of which it must have here: ``data``, ``attested``, ``reproduced``."""
    limit: int = 20


class WithdrawnCopy(Value, frozen=True, kw_only=True):
    """A dataset that is here, and that its publisher withdrew."""

    name: str
    """Its local name."""
    id: str
    withdrawn_at: str


class SearchView(Value, frozen=True, kw_only=True):
    """Cards that fit a search, the best first."""

    found: tuple[CardView, ...]
    more: int = 0
    """Number of further cards that fit."""
    cards: int = 0
    """Number of cards that were searched."""
    withdrawn: tuple[WithdrawnCopy, ...] = ()
    """Copies here whose local names have the words, and whose publishers withdrew them; ``limit`` of them at most."""


class PeerName(Value, frozen=True, kw_only=True):
    """A node, and what its operator calls it."""

    peer_id: str
    name: str | None = None
    """Name on its card, unchecked; absent: no card of it is known here."""
    alike: int = 0
    """Number of other nodes known here whose names look the same: compare the ids."""


class PeerState(Value, frozen=True, kw_only=True):
    """The present state of a Peer, as this node sees it."""

    name: str | None = None
    """Name that its operator gives it, unchecked; absent: no card of it is known here."""
    contact: str = ""
    """How to reach its operator, as on its card."""
    about: str = ""
    """Its operator's description of it."""
    alike: int = 0
    """Number of other nodes known here whose names look the same: compare the ids."""
    addresses: tuple[str, ...] = ()
    connected: bool = False
    score: float = 0.0
    last_seen: str | None = None
    datasets: int | None = None
    """Number of datasets that it says it serves; absent: unknown."""
    received: int | None = None
    """Bytes received over its open connections; absent: there are none."""
    sent: int | None = None
    received_rate: float | None = None
    """Bytes received a second, over the last eight seconds; bytes relayed for others count."""
    sent_rate: float | None = None


class PeerHoldings(Value, frozen=True, kw_only=True):
    """The local datasets that a connected peer says it serves."""

    peer_id: str
    names: tuple[str, ...]
    """A thousand at most."""


class ConnectRequest(Request, frozen=True, kw_only=True):
    multiaddr: str


class VisibilityRequest(Request, frozen=True, kw_only=True):
    """A change of visibility of either ``refs`` or ``all``."""

    refs: tuple[str, ...] = ()
    all: bool = False
    """Whether it is about every dataset that is here now."""
    to: tuple[str, ...] = ()
    """Networks to whose members alone datasets are published; empty: to everybody."""
    sample: int | None = None
    """Number of rows that the cards of the named datasets show to everybody who gets them, 0 to 20; ``None``: as
    before, and none at first."""
    title: str | None = None
    """A title for the cards of the named datasets; empty: none any more; ``None``: as before, like the three below."""
    place: str | None = None
    """The place that their rows are about, in words."""
    area: str | None = None
    """The area that their rows are about: ``W,S,E,N`` in degrees."""
    frequency: str | None = None
    """How often rows are added, as the publisher says: ``continuous``, ``hourly``, ``daily``, ``weekly``, ``monthly``,
    ``quarterly``, ``annual``, ``irregular`` or ``never``."""


class ShareRequest(Request, frozen=True, kw_only=True):
    """A change of shares; with neither field, a list of them."""

    ref: str
    peers: tuple[str, ...] = ()
    """Ids of peers, their keys (``did:key:…``), or beginnings of ids that are known here."""
    revoke: tuple[str, ...] = ()
    """Peers that get nothing more of it."""


class VisibilityView(Value, frozen=True, kw_only=True):
    """The resulting visibility of one dataset."""

    name: str
    id: str
    published: bool
    """Whether anything of it is announced or served to others."""
    unsigned: bool = False
    """Whether its head is signed by nobody, so that others see nothing of it yet."""
    shared_with: tuple[str, ...] = ()
    """Peers that get it although it is private."""
    changed: bool
    notes: tuple[str, ...] = ()
    """Further remarks for people."""
    networks: tuple[str, ...] | None = None
    """Networks to which its publication is limited; ``None``: no limit."""
    sample: int = 0
    """Most rows of it that its card shows."""
    words: CardWords = CardWords()
    """What its card says of it by its publisher's decision."""


class PublishRequest(Request, frozen=True, kw_only=True):
    ref: str
    once: bool = False
    """Whether to publish it once, without keeping it up to date."""
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
    """The name made of the dataset's own key, where others look."""
    head: str
    blocks: int
    at: str
    """Time at which it was published or its record renewed."""
    expires: str | None = None
    """Time until which the name resolves without a renewal."""
    standing: bool = True
    """Whether it is kept up to date."""
    added_blocks: int = 0
    added_objects: int = 0
    added_bytes: int = 0
    message: str = ""
    """Reason why it is not up to date."""
