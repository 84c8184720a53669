"""Chains whose truth is known: inputs, what was claimed of them, what a re-run gives; and what is signed of them.

A step reads one input and the state before it; its rows and the state after it follow. Block 0 is the seed, all others
are steps. The Merkle trees are the real ones. Signing and reading are remembered: Ed25519 signs one payload in one way,
so worlds that say the same can share it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from random import Random
from typing import NamedTuple, TypeAlias

import msgspec

from chain import instant
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import ARROW0_SHA3_256, Multihash
from chain.statements import cosignature, envelope, proof, statement
from chain.statements.checkpoint import TreeCheckpoint
from chain.statements.cosignature import Cosignature
from chain.statements.envelope import Signed
from chain.statements.keys import SigningKey
from chain.statements.proof import Proof
from chain.statements.statement import Actual, Attestation, EngineUsed, HeadStatement
from chain.statements.tree import Frontier
from odfd.store.keys.journal import JournalEntry, Order, SigningJournal
from odfd.store.ledger.runs import RecordedRun
from odfd.trust.validation import attestation_publisher
from odfd.trust.validation.attestation_publisher import Reexecuted, Subject
from p2p.ports import Topic
from p2p.wire.limits import MAX_ENVELOPE

GENESIS = b"nothing yet"
STRICT = "strict"


def digest(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


@cache
def key_of(name: str) -> SigningKey:
    return SigningKey(digest("key", name))


class Machine(NamedTuple):
    """What a step runs on. ``flaw``: the share of runs that come out wrong, each time in another way."""

    name: str
    platform: str
    rng: Random
    flaw: float = 0.0


class Block(NamedTuple):
    reads: bytes
    rows: bytes
    state: bytes
    leaf: bytes


@dataclass
class Branch:
    """One history of one dataset.

    ``recipe``: what else rows depend on: nothing (``strict``), the platform, the machine, or chance: how many outcomes.
    """

    dataset: DatasetId
    recipe: str = STRICT
    blocks: list[Block] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)
    """The true ones."""
    frontiers: list[Frontier] = field(default_factory=lambda: [Frontier()])
    first_lie: int | None = None
    roots: dict[int, bytes] = field(default_factory=dict)
    """By size, once asked for: whoever compares a statement with a branch asks for one of a few."""

    def __post_init__(self) -> None:
        if not self.blocks:
            self._add(b"seed", b"", GENESIS, GENESIS)

    def __len__(self) -> int:
        return len(self.blocks)

    def prefix(self, size: int) -> Branch:
        kept = self.first_lie if self.first_lie is not None and self.first_lie < size else None
        return Branch(
            self.dataset, self.recipe, self.blocks[:size], self.states[:size], self.frontiers[: size + 1], kept
        )

    def append(self, reads: bytes, machine: Machine, lie: str = "") -> None:
        """``lie``: ``rows`` or ``state`` are not what the step gives."""
        true = self._rows(self.states[-1], reads, machine)
        rows = self._rows(self.blocks[-1].state, reads, machine)
        state = digest("state", self.blocks[-1].state, reads)
        if lie == "rows":
            rows = digest("lie", reads)
        if lie == "state":
            state = digest("lie", reads)
        if rows != true and self.recipe == STRICT and self.first_lie is None:
            self.first_lie = len(self.blocks)
        self._add(reads, rows, state, digest("state", self.states[-1], reads))

    def _add(self, reads: bytes, rows: bytes, state: bytes, true: bytes) -> None:
        before = self.blocks[-1].leaf if self.blocks else b""
        leaf = digest(self.dataset, before, reads, rows, state)
        self.blocks.append(Block(reads, rows, state, leaf))
        self.states.append(true)
        self.frontiers.append(self.frontiers[-1].append(leaf))

    def _rows(self, state: bytes, reads: bytes, machine: Machine) -> bytes:
        if self.recipe == STRICT:
            return digest("rows", state, reads)
        if self.recipe in ("platform", "machine"):
            return digest("rows", state, reads, machine.platform if self.recipe == "platform" else machine.name)
        return digest("rows", state, reads, machine.rng.randrange(int(self.recipe)))

    def rerun(self, step: int, machine: Machine, *, opaque: bool) -> bytes:
        """Rows of a step: from the machine's own state, or (``opaque``) from the one that was published."""
        if machine.flaw and machine.rng.random() < machine.flaw:
            return digest("flaw", machine.rng.random())
        before = self.blocks[step - 1].state if opaque else self.states[step - 1]
        return self._rows(before, self.blocks[step].reads, machine)

    def root(self, size: int) -> bytes:
        if size not in self.roots:
            self.roots[size] = self.frontiers[size].root
        return self.roots[size]

    def leaves(self, start: int, stop: int) -> list[bytes]:
        return [block.leaf for block in self.blocks[start:stop]]

    def head(self, size: int) -> Multihash:
        return Multihash.from_digest(0x16, self.blocks[size - 1].leaf)

    def steps(self, size: int) -> range:
        return range(1, size)


def actual(rows: bytes) -> Actual:
    """What a run gave, as statements say it."""
    return Actual(logical_hash=Multihash.from_digest(ARROW0_SHA3_256, rows), records=1)


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
