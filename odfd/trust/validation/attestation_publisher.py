"""Publishes this node's attestation of a dataset, and signs it again when its findings change.

A statement replaces the one before after a pause, so that a million blocks cost one signature a sitting; what is wrong,
or was taken back, is told at once. Made with the validator. Spec: docs/spec/trust.md#attestations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import trio

from chain import instant
from chain.errors import Environment
from chain.ids import DatasetId
from chain.model.block import Block
from chain.multihash import Multihash
from chain.state import load_state
from chain.statements import envelope, statement
from chain.statements.envelope import Signed
from chain.statements.statement import InputTree, Span
from chain.store.base import ChainReader, ChainStore
from odfd.trust.keys import journal_topics
from odfd.trust.ledger.log import Ledger
from odfd.trust.ledger.runs import REPRODUCED, RunPosition, Runs
from odfd.trust.signing.signer_context import SignerContext
from odfd.trust.transform_steps import first_step
from odfd.trust.validation.attestation import NOT_ATTEMPTED, Reexecuted, Subject, attest, engines_of, spans_of

Determinism: TypeAlias = Callable[[DatasetId], Awaitable[str]]
"""Own analysis of the transform in force: ``strict``, ``no`` or ``unknown``."""


class AttestationPublisher:
    """The publisher of one validator's attestations."""

    def __init__(self, signer: SignerContext, chains: ChainStore, determinism: Determinism) -> None:
        self._signer = signer
        self._chains = chains
        self._determinism = determinism

    def due(self, dataset: DatasetId, pause: float, why: str = "") -> float | None:
        """Seconds until what the runs found is to be said, ``pause`` after the last word; ``None``: all is said.

        ``why``: what keeps this node from running the next step.
        """
        with self._signer.database.read() as connection:
            ledger = Ledger(connection)
            mine = ledger.attestation(dataset, self._signer.verdict_key.did)
            checked, newest, runs = ledger.chain(dataset), ledger.newest_head(dataset), Runs(connection).of(dataset)
            place = Runs(connection).place(dataset)
        if not runs and not why:
            return None
        if mine is None or newest is None or mine.epoch != newest[0].epoch:
            return 0.0
        tried = Reexecuted(runs, self._until(dataset, place, checked.data), why)
        now_said = spans_of(checked.data, tried, engines_of(runs))
        if mine.size >= checked.data and _verdicts(mine.spans) == _verdicts(now_said):
            return None
        if _against(mine.spans) != _against(now_said):
            return 0.0
        passed = (self._signer.clock.now() - instant.parse(mine.finished_at)) / instant.SECOND
        return min(max(0.0, pause - passed), pause)

    def _until(self, dataset: DatasetId, place: RunPosition | None, size: int) -> int:
        """The first step that was not run, or ``size``."""
        untried = step_after(self._chains.chain(dataset), place, size)
        return size if untried is None else untried.sequence_number

    async def say(self, dataset: DatasetId, why: str = "", budget: int = 0) -> None:
        """Sign what was found of the newest tree that is here whole, and tell it.

        ``budget``: seconds of an engine that are spent on a step at most.
        """
        determinism = await self._analysed(dataset)
        signed = await trio.to_thread.run_sync(self._sign, dataset, determinism, why, budget)
        if signed is not None:
            self._signer.announce(dataset, signed)
            self._signer.events.emit("attestation.signed", self._signer.name_of(dataset), "", sid=str(signed.sid))

    async def _analysed(self, dataset: DatasetId) -> str:
        """Not known where there is no engine to ask: an abstention is signed all the same."""
        try:
            return await self._determinism(dataset)
        except Environment:
            return "unknown"

    def _sign(self, dataset: DatasetId, determinism: str, why: str, budget: int) -> Signed | None:
        """Sign what the runs so far say of the newest tree that is here whole."""
        key = self._signer.verdict_key
        with self._signer.database.read() as connection:
            ledger = Ledger(connection)
            newest, checked, runs = ledger.newest_head(dataset), ledger.chain(dataset), Runs(connection).of(dataset)
            before, place = ledger.attestation(dataset, key.did), Runs(connection).place(dataset)
        if newest is None or newest[0].root_hash != checked.frontier.root:
            return None
        head = newest[0]
        subject = Subject(dataset=dataset, epoch=head.epoch, size=head.size, root_hash=head.root_hash, head=head.head)
        last = None if before is None else (before.serial, envelope.sid(statement.encode(before)))
        topic = journal_topics.attestation(dataset, head.epoch)
        journalled = self._signer.keys.last_said(key.did, topic)
        if journalled is not None and (last is None or journalled.order[0] > last[0]):
            last = (journalled.order[0], Multihash.parse(journalled.subject))
        tried = Reexecuted(runs, self._until(dataset, place, head.size), why, budget)
        said = attest(key.did, subject, tried, self._inputs(dataset), determinism, last, self._signer.clock.now())
        payload = statement.encode(said)
        sealed = self._signer.keys.sign(key, topic, (said.serial,), str(envelope.sid(payload)), payload)
        signed = envelope.unseal(sealed, said.MAX_ENVELOPE)
        with self._signer.database.write() as connection:
            Ledger(connection).record(signed, key.did, "signed", "", self._signer.clock.now(), live=True)
        return signed

    def _inputs(self, dataset: DatasetId) -> list[InputTree]:
        """The trees that were read; of private ones nothing is said."""
        trees = []
        transform = load_state(self._chains.chain(dataset)).set_transform
        read_from = [DatasetId.parse(each.dataset_ref) for each in (transform.inputs if transform else ())]
        public = self._signer.public_of(read_from)
        with self._signer.database.read() as connection:
            ledger = Ledger(connection)
            for read in read_from:
                checked = ledger.chain(read)
                tree = checked.frontier
                if tree.size and read in public:
                    trees.append(InputTree(dataset=read, epoch=checked.epoch, size=tree.size, root_hash=tree.root))
        return trees


def _verdicts(spans: Sequence[Span]) -> list[tuple[int, int, str, str | None]]:
    return [(span.first, span.last, span.verdict, span.reason) for span in spans]


def _against(spans: Sequence[Span]) -> set[tuple[int, str]]:
    """What is said of steps that do not give what was published."""
    return {(span.last, span.verdict) for span in spans if span.verdict not in (REPRODUCED, NOT_ATTEMPTED)}


def step_after(chain: ChainReader, place: RunPosition | None, stop: int) -> Block | None:
    """The first step below ``stop`` that this node has not replayed."""
    return first_step(chain, 0 if place is None else place.sequence_number + 1, stop)
