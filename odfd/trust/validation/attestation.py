"""Makes the attestation of a dataset from this node's own runs: one cumulative statement.

Pure. Every block is covered by a span; a verdict speaks of every ExecuteTransform in its span.
Spec: docs/spec/trust.md#attestations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

import msgspec

from chain import instant
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.model.events import DataSlice, ExecuteTransform
from chain.multihash import Multihash
from chain.statements import statement
from chain.statements.statement import Actual, Attestation, CostLimit, EngineUsed, InputTree, Interval, Mismatch, Span
from odfd.trust.judgement.verdicts import TOO_COSTLY
from odfd.trust.ledger.runs import Run

MAX_SPANS: Final = 128
NOT_ATTEMPTED: Final = "not-attempted"


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The signed tree that the attestation speaks of."""

    dataset: DatasetId
    epoch: int
    size: int
    root_hash: bytes
    head: Multihash


class Reexecuted(msgspec.Struct, frozen=True):
    """What this node has re-run of a chain."""

    runs: Mapping[int, Run]
    until: int
    """The first step that was not run, or the chain's size: nothing is said of it and what follows."""
    why: str = ""
    """What keeps this node from running it, where that has lasted."""
    budget: int = 0
    """Seconds of an engine that are spent on a step at most."""


def actual_of(event: ExecuteTransform, data: DataSlice | None) -> Actual:
    """What a run of a step gave, as statements say it."""
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
    """The next attestation after ``last`` (its serial and sid)."""
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


def engines_of(runs: Mapping[int, Run]) -> list[EngineUsed]:
    """In the order in which spans count them."""
    return sorted({run.engine for run in runs.values()}, key=lambda used: (used.name, used.digest, used.sandbox))


def spans_of(size: int, tried: Reexecuted, engines: Sequence[EngineUsed]) -> tuple[Span, ...]:
    """Spans over blocks ``0 … size-1``, like ones merged; beyond MAX_SPANS the oldest become ``not-attempted``."""
    pieces: list[Span] = []
    runs, until = tried.runs, min(tried.until, size)
    for number in sorted(number for number in runs if number < size):
        run = runs[number]
        at = pieces[-1].last + 1 if pieces else 0
        if run.verdict != "reproduced" and at < number:
            pieces.append(_quiet(at, number - 1, pieces))
            at = number
        said = Span(
            first=at,
            last=number,
            verdict=run.verdict,
            state="genesis",
            engine=engines.index(run.engine),
            reason=run.reason or None,
        )
        pieces.append(said)
    at = pieces[-1].last + 1 if pieces else 0
    if at < until:
        pieces.append(_quiet(at, until - 1, pieces))
        at = until
    if at < size:
        pieces.append(_untried(at, size - 1, pieces, tried.why))
    spans = [_merge(list(group)) for _, group in groupby(pieces, key=_likeness)]
    while len(spans) > MAX_SPANS:
        spans[:2] = [Span(first=spans[0].first, last=spans[1].last, verdict=NOT_ATTEMPTED)]
    return tuple(spans)


def _quiet(first: int, last: int, pieces: Sequence[Span]) -> Span:
    """Blocks in which no step was run: those that follow reproduced ones hold no step; after others none was tried."""
    before = pieces[-1] if pieces else None
    if before is not None and before.verdict == "reproduced":
        return msgspec.structs.replace(before, first=first, last=last)
    return _untried(first, last, pieces)


def _untried(first: int, last: int, pieces: Sequence[Span], why: str = "") -> Span:
    after_mismatch = bool(pieces) and pieces[-1].verdict == "mismatch"
    return Span(
        first=first, last=last, verdict=NOT_ATTEMPTED, reason="after-mismatch" if after_mismatch else why or None
    )


def _likeness(span: Span) -> tuple[object, ...]:
    return (span.verdict, span.state, span.engine, span.reason)


def _merge(like: Sequence[Span]) -> Span:
    return msgspec.structs.replace(like[0], last=like[-1].last)
