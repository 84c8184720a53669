"""Says on which topic each kind of statement is gossiped, and whether there is room for one more of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from chain.ids import KeyDid
from chain.statements.statement import ATTESTATION, AUTHORITY, HEAD, OBSERVATION, POLICY, Attestation, Observation
from odfd.trust.ledger.kinds import COSIGNATURE, PROOF
from odfd.trust.ledger.log import Ledger
from odfd.trust.ledger.observations import Observations
from p2p.ports import Topic

MAX_LISTED: Final = 64
MAX_UNLISTED: Final = 16
"""Validators, and observers, of one dataset."""
IsListed: TypeAlias = Callable[[KeyDid], bool]


def _always(_connection: sqlite3.Connection, _said: object, _is_listed: IsListed) -> bool:
    """Of which there is no more than one for each writer, root or version."""
    return True


def _of_validators(connection: sqlite3.Connection, said: Attestation, is_listed: IsListed) -> bool:
    heard = Ledger(connection).signers(said.dataset, ATTESTATION)
    if said.validator in heard:
        return True
    listed = is_listed(said.validator)
    return sum(is_listed(key) is listed for key in heard) < (MAX_LISTED if listed else MAX_UNLISTED)


def _of_observers(connection: sqlite3.Connection, said: Observation, is_listed: IsListed) -> bool:
    listed = is_listed(said.observer)
    return Observations(connection).has_room(said, listed=listed, most=MAX_LISTED if listed else MAX_UNLISTED)


class GossipKind(NamedTuple):
    """How statements of one kind come in."""

    topic: Topic
    has_room: Callable[[sqlite3.Connection, Any, IsListed], bool] = _always
    """Whether one may be kept, where its dataset is known."""


KINDS: Final = {
    HEAD: GossipKind(Topic.HEADS),
    AUTHORITY: GossipKind(Topic.HEADS),
    ATTESTATION: GossipKind(Topic.ATTEST, _of_validators),
    OBSERVATION: GossipKind(Topic.ATTEST, _of_observers),
    POLICY: GossipKind(Topic.HEADS),
    COSIGNATURE: GossipKind(Topic.HEADS),
    PROOF: GossipKind(Topic.PROOFS),
}
