"""Returns the names that nodes give themselves, and counts look-alikes. Names are shown, never used as identities."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from chain.errors import Invalid
from chain.ids import KeyDid
from chain.statements.node_card import NodeCard, NodeClaims
from odfd.network.look_alikes import likeness
from odfd.network.peer_cards import MAX_NODE_CARDS, PeerCards
from p2p.identity import did_of_peer


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
        self._alike = Counter(_fold(each.name) for each in claims.values())

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
