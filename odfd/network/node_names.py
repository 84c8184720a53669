"""Returns the names that nodes give themselves, and counts look-alikes. Names are shown, never used as identities."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from chain.errors import Invalid, NotFound
from chain.ids import KeyDid
from chain.statements.node_card import NodeCard, NodeClaims
from odfd.network.card_index import likeness
from odfd.network.peer_cards import MAX_NODE_CARDS, PeerCards
from p2p.identity import did_of_peer, parse_peer, peer_of_did
from p2p.ports import PeerId, PeerView


class NodeName(NamedTuple):
    """A node's name and contact as its operator states them; unchecked."""

    name: str
    contact: str
    about: str
    alike: int
    """How many other known nodes have a look-alike name."""


class NodeNames:
    """The names of all known nodes at one moment."""

    def __init__(self, claims: Mapping[KeyDid, NodeClaims]) -> None:
        self._claims = claims
        self._alike = Counter(_fold(claim.name) for claim in claims.values())

    def of(self, key: KeyDid) -> NodeName | None:
        """Returns the name of a node by its key; ``None`` if no card of it is known."""
        said = self._claims.get(key)
        if said is None:
            return None
        return NodeName(said.name, said.contact, said.about, self._alike[_fold(said.name)] - 1)

    def of_peer(self, peer: str) -> NodeName | None:
        """Returns the name of a node by its peer id, as ``of``."""
        try:
            return self.of(did_of_peer(peer))
        except Invalid:
            return None


def node_names(cards: PeerCards, own: Callable[[], NodeCard | None]) -> Callable[[], NodeNames]:
    """Returns a function for the current names. Call it in a worker thread: its first call loads a large table."""

    def look() -> NodeNames:
        claims, mine = cards.claims(), own()
        if mine is not None and mine.claims is not None:
            claims[mine.node] = mine.claims
        return NodeNames(claims)

    return look


@functools.lru_cache(MAX_NODE_CARDS * 2)
def _fold(name: str) -> str:
    """Returns the text for comparison; the name itself if nothing remains, as of punctuation alone."""
    return likeness(name) or name


WHOLE_ID: Final = re.compile(r"12D3KooW[1-9A-HJ-NP-Za-km-z]{44}")
"""A whole peer id: an Ed25519 key in base58, as libp2p writes it."""
DID_KEY: Final = "did:key:"


def find_peer(views: Iterable[PeerView], beginning: str) -> PeerView:
    """Returns the only peer whose id begins so. Raises NotFound, Invalid."""
    found = [view for view in views if view.peer.startswith(beginning)]
    if len(found) == 1:
        return found[0]
    if beginning.startswith("/"):
        hint = "odfctl peer connect ADDRESS; then name it by its id, the part after /p2p/"
        raise Invalid(f"{beginning[:120]!r} is an address, and a peer is named by its id", rule="peer", hint=hint)
    if not found:
        raise NotFound(f"no peer {beginning[:60]!r} is known here", rule="peer", hint="odfctl peer list")
    raise Invalid(f"{len(found)} peers begin with {beginning!r}", rule="peer", hint="write more of it")


def peer_named(views: Iterable[PeerView], text: str) -> PeerId:
    """Returns a peer's id; by its whole id or its key also that of one never met. Raises NotFound, Invalid."""
    if text.startswith(DID_KEY):
        return peer_of_did(KeyDid.parse(text))
    return parse_peer(text) if WHOLE_ID.fullmatch(text) else find_peer(views, text).peer
