"""Tells what nodes call themselves, beside which of them look alike. Names are shown and never used as identities."""

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
    """The operator's own words on a node; nothing checks them."""

    name: str
    contact: str
    about: str
    alike: int
    """Other nodes that are known here and whose names look the same."""


class NodeNames:
    """The names of nodes, of one moment."""

    def __init__(self, claims: Mapping[KeyDid, NodeClaims]) -> None:
        self._claims = claims
        self._alike = Counter(_folded(each.name) for each in claims.values())

    def of(self, key: KeyDid) -> NodeName | None:
        """``None``: no card of it is known."""
        said = self._claims.get(key)
        if said is None:
            return None
        return NodeName(said.name, said.contact, said.about, self._alike[_folded(said.name)] - 1)

    def of_peer(self, peer: str) -> NodeName | None:
        """As ``of``, by the id of a peer."""
        try:
            return self.of(did_of_peer(peer))
        except Invalid:
            return None


def node_names(cards: PeerCards, own: Callable[[], NodeCard | None]) -> Callable[[], NodeNames]:
    """Returns a function that looks them up; call it in a worker thread, since the first call reads a large table."""

    def look() -> NodeNames:
        claims, mine = cards.claims(), own()
        if mine is not None and mine.claims is not None:
            claims[mine.node] = mine.claims
        return NodeNames(claims)

    return look


@functools.lru_cache(MAX_NODE_CARDS * 2)
def _folded(name: str) -> str:
    """Folds a name, or the name itself where nothing of it is left: of punctuation and symbols alone."""
    return likeness(name) or name
