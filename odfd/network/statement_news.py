"""Declares what the statement store reports to subscribers: each new statement, and each new proof."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from chain.ids import KeyDid
from chain.multihash import Multihash
from chain.statements.cosignature import Cosignature
from chain.statements.proof import Proof
from chain.statements.statement import AnyPredicate
from odfd.trust.admission.rules import AdmissionOutcome
from p2p.ports import PeerId


class NewStatement(msgspec.Struct, frozen=True, kw_only=True):
    """An admitted statement that is new here."""

    predicate: AnyPredicate
    signer: KeyDid
    sid: Multihash
    outcome: AdmissionOutcome
    sender: PeerId
    envelope: bytes = b""
    proof: Proof | None = None
    """The proof, if the statement contradicts another and the proof could be made here."""


OnProof = Callable[[Proof, bool], None]
"""Called with a new proof, and whether it was made here, so that nobody else has it."""


class Subscribers(NamedTuple):
    """Callbacks for new statements, called from worker threads."""

    news: Callable[[NewStatement], None] = lambda _: None
    proof: OnProof = lambda _proof, _made_here: None
    cosignature: Callable[[Cosignature], None] = lambda _: None
    """Called for cosignatures of witnesses that count here."""
