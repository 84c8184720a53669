"""Parses a public witness from the settings: its key, and the address where checkpoints are submitted."""

from __future__ import annotations

import msgspec

from chain.errors import Invalid
from chain.ids import KeyDid
from chain.statements.checkpoint import VerifierKey
from odfd.trust.policy.witness_quorum import cosigner_key
from p2p.web.folder_url import place_of


class PublicWitness(msgspec.Struct, frozen=True):
    """Whom to ask, and where."""

    key: VerifierKey
    url: str

    @property
    def did(self) -> KeyDid:
        return KeyDid.from_public_key(self.key.public_key)

    @property
    def submit(self) -> str:
        return f"{self.url}/add-checkpoint"


def read_witness(text: str) -> PublicWitness:
    """``VKEY URL`` as the settings write it. Raises Invalid."""
    vkey, _, url = text.partition(" ")
    place = place_of(url.strip())
    if place is None:
        raise Invalid(
            f"not a public witness: {text[:80]!r}", rule="public-witness", hint="NAME+ID+BASE64 https://HOST/…"
        )
    return PublicWitness(cosigner_key(vkey), place)
