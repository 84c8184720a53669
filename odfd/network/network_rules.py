"""Decides in which networks a statement is shown, for a node that is in several (ADR 47)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.statement import POLICY, PolicyStatement
from chain.store.database import Database
from odfd.store.ledger import kinds
from odfd.store.visibility import PublicOf, Visibility


class NetworkRules(NamedTuple):
    """Rules that depend on the network in which a statement is received or shown."""

    within: Callable[[str], PublicOf]
    """Returns ``public_of`` for a network."""
    reaches: Callable[[DatasetId, str], bool]
    """Whether a dataset was announced in a network, even if it is private now: there it may be withdrawn."""
    heard: Callable[[DatasetId, str, bool], None]
    """Called before a statement on another's dataset is judged, with the network and whether the dataset is wanted."""
    keep: Callable[[DatasetId], None]
    """Called when a dataset becomes wanted: the networks where it was mentioned are then stored."""


def network_rules(visibility: Visibility, clock: Callable[[], Instant]) -> NetworkRules:
    def reaches(dataset: DatasetId, network: str) -> bool:
        scope = visibility.scope(dataset)
        return scope is None or network in scope

    def note_mention(dataset: DatasetId, network: str, is_wanted: bool) -> None:
        visibility.note_mention(dataset, network, clock(), is_wanted=is_wanted)

    def keep(dataset: DatasetId) -> None:
        if visibility.is_divided():
            visibility.keep_heard(dataset, clock())

    return NetworkRules(visibility.within, reaches, note_mention, keep)


def is_told_in(database: Database, sid: Multihash, network: str) -> bool:
    """Whether a statement on a key is shown in a network: policies name theirs; proofs against keys go everywhere."""
    with database.read() as connection:
        found = kinds.find(connection, sid)
    if found is None or found[0] != POLICY:
        return True
    said = statement.decode_any(envelope.payload_of(found[1]))
    return isinstance(said, PolicyStatement) and said.network == network
