"""Parses the ways in which people name a peer: its id, its key, or a prefix of a known peer's id."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from chain.errors import Invalid, NotFound
from chain.ids import KeyDid
from p2p.identity import parse_peer, peer_of_did
from p2p.ports import PeerId, PeerView

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
