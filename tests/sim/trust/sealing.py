"""Signing and reading, remembered: Ed25519 signs one payload in one way, so worlds that say the same can share it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

import msgspec

from chain import instant
from chain.errors import Invalid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import cosignature, envelope, proof, statement
from chain.statements.checkpoint import TreeCheckpoint
from chain.statements.cosignature import Cosignature
from chain.statements.envelope import Signed
from chain.statements.keys import SigningKey
from chain.statements.proof import Proof
from chain.statements.statement import Attestation, EngineUsed, HeadStatement
from odfd.store.keys.journal import JournalEntry, Order, SigningJournal
from odfd.store.ledger.runs import RecordedRun
from odfd.trust.validation import attestation_publisher
from odfd.trust.validation.attestation_publisher import Reexecuted, Subject
from p2p.ports import Topic
from p2p.wire.limits import MAX_ENVELOPE
from sim.trust.fabric import Branch, Machine

START = instant.parse("2026-11-20T08:00:00Z")
WEEK = 7 * 86400 * instant.SECOND
Said: TypeAlias = HeadStatement | Attestation


class Opened(msgspec.Struct, frozen=True):
    """A statement and its signatures, or a proof."""

    predicate: Said | Proof
    signed: Signed | None


@lru_cache(maxsize=100_000)
def sealed(said: Said, key: SigningKey) -> Signed:
    """Whoever hears it verifies it, in ``opened``."""
    payload = statement.encode(said)
    return Signed(payload, (key.did,), envelope.seal(payload, key))


@lru_cache(maxsize=100_000)
def opened(topic: Topic, raw: bytes) -> Opened | None:
    """``None``: refused."""
    try:
        if topic is Topic.PROOFS:
            return Opened(proof.decode(raw), None)
        signed = envelope.unseal(raw, MAX_ENVELOPE)
        predicate = statement.decode(signed.payload)
    except Invalid:
        return None
    fits = isinstance(predicate, HeadStatement) == (topic is Topic.HEADS)
    return Opened(predicate, signed) if fits and isinstance(predicate, HeadStatement | Attestation) else None


@lru_cache(maxsize=100_000)
def cosigned(key: SigningKey, tree: TreeCheckpoint, now: Instant) -> Cosignature:
    return cosignature.cosign(key, tree, now)


def head_of(branch: Branch, size: int, key: SigningKey, now: Instant, epoch: int = 0) -> Signed:
    said = HeadStatement(
        dataset=branch.dataset,
        epoch=epoch,
        size=size,
        root_hash=branch.root(size),
        authority=0,
        issued_at=statement.when(now),
        expires_at=statement.when(Instant(now + WEEK)),
        head=branch.head(size),
    )
    return sealed(said, key)


def subject_of(branch: Branch, size: int) -> Subject:
    return Subject(dataset=branch.dataset, epoch=0, size=size, root_hash=branch.root(size), head=branch.head(size))


class RememberedJournal(SigningJournal):
    """The rules of the signing journal without its file; it survives what happens to the node's stores."""

    def __init__(self) -> None:
        self._last: dict[str, JournalEntry] = {}

    def promise(self, topic: str, order: Order, subject: str) -> None:
        self.check(topic, order, subject)
        self._last[topic] = JournalEntry(order, subject)


def engine_of(machine: Machine) -> EngineUsed:
    return EngineUsed(name="spark", digest="sha256:0", pinned=True, sandbox="image", platform=machine.platform)


def attested(
    key: SigningKey,
    subject: Subject,
    runs: Mapping[int, RecordedRun],
    last: tuple[int, Multihash] | None,
    now: Instant,
    *,
    opaque: bool = False,
) -> Signed:
    """By the real rules of attesting. ``opaque``: it began from published states, and says so."""
    tried = Reexecuted(runs, 1 + max(runs, default=0))
    said = attestation_publisher.attest(key.did, subject, tried, (), "strict", last, now)
    if opaque:
        spans = tuple(msgspec.structs.replace(span, state=span.state and "opaque") for span in said.spans)
        said = msgspec.structs.replace(said, spans=spans)
    return sealed(said, key)
