"""Returns what an accepted statement is about, whom it accuses, and whether it can wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from chain.ids import DatasetId, KeyDid
from chain.statements import cosignature, envelope, statement
from chain.statements import proof as proofs
from chain.statements.authority import Rights
from chain.statements.card import CARD, Card
from chain.statements.node_card import NodeCard
from odfd.store.ledger.cards import read
from p2p.ports import Topic

COSIGNATURE: Final = b'{"line":'
"""The beginning of a cosignature's canonical form; no envelope begins so."""


class StatementSubject(NamedTuple):
    dataset: DatasetId
    accused: tuple[KeyDid, ...] = ()
    is_bulky: bool = False


def subject_of(topic: Topic, raw: bytes, rights_at: Callable[[DatasetId, int], Rights | None]) -> StatementSubject:
    """Returns the subject of a statement. Raises Invalid."""
    if topic is Topic.PROOFS:
        proof = proofs.decode(raw, rights_at)
        return StatementSubject(proof.dataset, proof.accused)
    if raw.startswith(COSIGNATURE):
        return StatementSubject(cosignature.decode(raw).checkpoint.dataset)
    said = statement.decode_any(envelope.payload_of(raw))
    return StatementSubject(said.dataset, is_bulky=isinstance(said, Card | NodeCard) and not said.is_withdrawal)


def is_withdrawal(found: tuple[str, bytes]) -> bool:
    """Whether a statement is a card that withdraws a former one; it is announced even if the dataset is private."""
    kind, sealed = found
    return kind == CARD and read(sealed).is_withdrawal
