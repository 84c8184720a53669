"""Makes this node's attestation of a dataset from its own runs, publishes it, and signs it again when findings change.

It is one cumulative statement: every block is covered by a span, whose verdict is about all transforms in the span. A
new statement replaces the one before after a pause, so that a million blocks need only one signature; mismatches, and
verdicts taken back, are published at once. Made with the validator. Spec: docs/spec/trust.md#attestations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from typing import Final, TypeAlias

import msgspec
import trio

from chain import instant
from chain.errors import Environment
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.model.block import Block
from chain.model.events import DataSlice, ExecuteTransform
from chain.multihash import Multihash
from chain.state import load_state
from chain.statements import envelope, statement
from chain.statements.envelope import Signed
from chain.statements.statement import Actual, Attestation, CostLimit, EngineUsed, InputTree, Interval, Mismatch, Span
from chain.store.base import ChainReader, ChainStore
from odfd.runtime.subjects import about
from odfd.store.keys import journal_topics
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.runs import REPRODUCED, RecordedRun, RunPosition, Runs
from odfd.trust.judgement.verdicts import TOO_COSTLY
from odfd.trust.signing.signer_context import SignerContext
from odfd.trust.transform_steps import first_step

MAX_SPANS: Final = 128
NOT_ATTEMPTED: Final = "not-attempted"


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The signed tree that the attestation is about."""

    dataset: DatasetId
    epoch: int
    size: int
    root_hash: bytes
    head: Multihash


class Reexecuted(msgspec.Struct, frozen=True):
    """The result of re-running a chain."""

    runs: Mapping[int, RecordedRun]
    until: int
    """The first step that was not run, or the chain's size; the attestation says nothing about it and later blocks."""
    why: str = ""
    """The lasting reason why this node cannot run that step; empty: none."""
    budget: int = 0
    """The limit for a step, in seconds of an engine."""


def actual_of(event: ExecuteTransform, data: DataSlice | None) -> Actual:
    """Converts the result of a re-run step to the form of statements."""
    interval = data.offset_interval if data else None
    return Actual(
        logical_hash=data.logical_hash if data else None,
        offset_interval=Interval(start=interval.start, end=interval.end) if interval else None,
        records=interval.end - interval.start + 1 if interval else 0,
        watermark=None if event.new_watermark is None else instant.render(event.new_watermark),
    )


def attest(
    validator: KeyDid,
    subject: Subject,
    tried: Reexecuted,
    inputs: Sequence[InputTree],
    determinism: str,
    last: tuple[int, Multihash] | None,
    now: Instant,
) -> Attestation:
    """Makes the next attestation after ``last`` (its serial and sid)."""
    runs = tried.runs
    engines = engines_of(runs)
    return Attestation(
        validator=validator,
        dataset=subject.dataset,
        epoch=subject.epoch,
        size=subject.size,
        root_hash=subject.root_hash,
        serial=1 if last is None else last[0] + 1,
        previous=None if last is None else last[1],
        determinism=determinism,
        finished_at=statement.when(now),
        engines=tuple(engines),
        inputs=tuple(inputs),
        spans=spans_of(subject.size, tried, engines),
        mismatch=tuple(
            Mismatch(sequence_number=run.sequence_number, runs=run.runs, bundle=run.bundle, actual=run.actual)
            for run in runs.values()
            if run.verdict == "mismatch" and run.actual is not None
        ),
        budget=CostLimit(seconds=tried.budget) if tried.why == TOO_COSTLY else None,
        head=subject.head,
    )


def engines_of(runs: Mapping[int, RecordedRun]) -> list[EngineUsed]:
    """Lists engines in the order by which spans refer to them."""
    return sorted({run.engine for run in runs.values()}, key=lambda used: (used.name, used.digest, used.sandbox))


def spans_of(size: int, tried: Reexecuted, engines: Sequence[EngineUsed]) -> tuple[Span, ...]:
    """Makes spans over blocks ``0 … size-1``, equal ones merged;
    beyond MAX_SPANS the oldest become ``not-attempted``."""
    pieces: list[Span] = []
    runs, until = tried.runs, min(tried.until, size)
    for number in sorted(number for number in runs if number < size):
        run = runs[number]
        at = pieces[-1].last + 1 if pieces else 0
        if run.verdict != "reproduced" and at < number:
            pieces.append(_quiet(at, number - 1, pieces))
            at = number
        span = Span(
            first=at,
            last=number,
            verdict=run.verdict,
            state="genesis",
            engine=engines.index(run.engine),
            reason=run.reason or None,
        )
        pieces.append(span)
    at = pieces[-1].last + 1 if pieces else 0
    if at < until:
        pieces.append(_quiet(at, until - 1, pieces))
        at = until
    if at < size:
        pieces.append(_make_untried(at, size - 1, pieces, tried.why))
    spans = [_merge(list(group)) for _, group in groupby(pieces, key=_likeness)]
    while len(spans) > MAX_SPANS:
        spans[:2] = [Span(first=spans[0].first, last=spans[1].last, verdict=NOT_ATTEMPTED)]
    return tuple(spans)


def _quiet(first: int, last: int, pieces: Sequence[Span]) -> Span:
    """Makes a span of blocks in which no step was run:
    after reproduced blocks they hold no step; else none was tried."""
    before = pieces[-1] if pieces else None
    if before is not None and before.verdict == "reproduced":
        return msgspec.structs.replace(before, first=first, last=last)
    return _make_untried(first, last, pieces)


def _make_untried(first: int, last: int, pieces: Sequence[Span], why: str = "") -> Span:
    after_mismatch = bool(pieces) and pieces[-1].verdict == "mismatch"
    return Span(
        first=first, last=last, verdict=NOT_ATTEMPTED, reason="after-mismatch" if after_mismatch else why or None
    )


def _likeness(span: Span) -> tuple[object, ...]:
    return (span.verdict, span.state, span.engine, span.reason)


def _merge(like: Sequence[Span]) -> Span:
    return msgspec.structs.replace(like[0], last=like[-1].last)


Determinism: TypeAlias = Callable[[DatasetId], Awaitable[str]]
"""Returns this node's own analysis of the transform in force: ``strict``, ``no`` or ``unknown``."""


class AttestationPublisher:
    """Publishes the attestations of one validator."""

    def __init__(self, signer: SignerContext, chains: ChainStore, determinism: Determinism) -> None:
        self._signer = signer
        self._chains = chains
        self._determinism = determinism

    def due(self, dataset: DatasetId, pause: float, why: str = "") -> float | None:
        """Returns seconds until new findings are signed, ``pause`` after the last attestation; ``None``: none are new.

        ``why``: the reason why this node cannot run the next step.
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
        """Returns the first step that was not run, or ``size``."""
        untried = step_after(self._chains.chain(dataset), place, size)
        return size if untried is None else untried.sequence_number

    async def say(self, dataset: DatasetId, why: str = "", budget: int = 0) -> None:
        """Signs the findings on the newest complete tree, and announces them. ``budget``: engine seconds per step."""
        determinism = await self._analyse(dataset)
        signed = await trio.to_thread.run_sync(self._sign, dataset, determinism, why, budget)
        if signed is not None:
            self._signer.announce(dataset, signed)
            self._signer.events.emit(
                "attestation.signed", self._signer.name_of(dataset), "", about=about(dataset), sid=str(signed.sid)
            )

    async def _analyse(self, dataset: DatasetId) -> str:
        """Returns the determinism of a dataset, "unknown" without an engine, since abstentions are signed even then."""
        try:
            return await self._determinism(dataset)
        except Environment:
            return "unknown"

    def _sign(self, dataset: DatasetId, determinism: str, why: str, budget: int) -> Signed | None:
        """Signs the verdicts of the runs so far on the newest tree of which all blocks are here."""
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
        journalled = self._signer.keys.last_signed(key.did, topic)
        # The database is older than the journal, as after a restored backup: one serial for two statements is a double
        # vote (trust.md#forks).
        if journalled is not None and (last is None or journalled.order[0] > last[0]):
            last = (journalled.order[0], Multihash.parse(journalled.subject))
        tried = Reexecuted(runs, self._until(dataset, place, head.size), why, budget)
        made = attest(key.did, subject, tried, self._inputs(dataset), determinism, last, self._signer.clock.now())
        payload = statement.encode(made)
        sealed = self._signer.keys.sign(key, topic, (made.serial,), str(envelope.sid(payload)), payload)
        signed = envelope.unseal(sealed, made.MAX_ENVELOPE)
        with self._signer.database.write() as connection:
            Ledger(connection).record(signed, key.did, "signed", "", self._signer.clock.now(), live=True)
        return signed

    def _inputs(self, dataset: DatasetId) -> list[InputTree]:
        """Lists the input trees that were read; private ones are left out."""
        trees = []
        transform = load_state(self._chains.chain(dataset)).set_transform
        read_from = [DatasetId.parse(input_.dataset_ref) for input_ in (transform.inputs if transform else ())]
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
    """Returns the verdicts other than reproduced, with the last step of each."""
    return {(span.last, span.verdict) for span in spans if span.verdict not in (REPRODUCED, NOT_ATTEMPTED)}


def step_after(chain: ChainReader, place: RunPosition | None, stop: int) -> Block | None:
    """Returns the first step below ``stop`` that this node has not replayed."""
    return first_step(chain, 0 if place is None else place.sequence_number + 1, stop)
