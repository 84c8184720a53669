"""Stores this node's results of re-running steps, as stretches of blocks, and of re-checking others' evidence.

With the stretches is the position of this node's own replay. Each re-check counts as this node's own verdict. Calls are
synchronous, on the connection they are given; the tables are the ledger's. Spec: docs/spec/trust.md#attestations,
#bundles, #rechecks, #ledger.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec

from chain import instant
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import canonical, statement
from chain.statements.statement import Actual
from chain.store.seals import Row
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.tables import AGAIN, RECHECKED, REPLAYS, RUNS

REPRODUCED: Final = "reproduced"


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of re-running a step. For consecutive steps that were reproduced alike,
    the last one stands for all."""

    sequence_number: int
    first: int | None = None
    """The first step of such a stretch; ``None``: this step alone."""
    block: Multihash
    at: Instant
    verdict: str
    reason: str = ""
    runs: int = 1
    engine: statement.EngineUsed
    actual: Actual | None = None
    evidence: bytes | None = None
    """JSON for people: where the published and the computed rows differ."""
    bundle: Multihash | None = None
    """Id of the bundle that was kept of a mismatch; ``None``: none was."""

    @property
    def starts(self) -> int:
        """The first step that it stands for."""
        return self.sequence_number if self.first is None else self.first


class RunPosition(msgspec.Struct, frozen=True):
    """The last step that this node replayed, and the checkpoint that its own run made there."""

    sequence_number: int
    block: Multihash
    checkpoint: bytes | None


class Runs:
    """Stores this node's own runs, over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def place(self, dataset: DatasetId) -> RunPosition | None:
        """Returns the position of this node's own replay of a chain."""
        row = REPLAYS.one(self._db, "dataset = ?", (dataset,))
        return RunPosition(row[1], Multihash(row[2]), row[3]) if row else None

    def keep_place(self, dataset: DatasetId, place: RunPosition) -> None:
        REPLAYS.put(self._db, dataset, place.sequence_number, place.block, place.checkpoint)

    def keep(self, dataset: DatasetId, run: RecordedRun) -> None:
        """Keeps a result. If it was reproduced like the step before, the two form one stretch,
        so that rows stay few."""
        first, like = run.first, (run.verdict, msgspec.json.encode(run.engine))
        earlier = "dataset = ? AND sequence < ? ORDER BY sequence DESC LIMIT 1"
        row = RUNS.one(self._db, earlier, (dataset, run.sequence_number))
        if row is not None and (row[4], row[7]) == like and run.verdict == REPRODUCED:
            before = read_run(row[1:])
            first = before.starts
            self._db.execute(
                "DELETE FROM trust_runs WHERE dataset = ? AND sequence = ?", (dataset, before.sequence_number)
            )
        RUNS.put(
            self._db,
            dataset,
            run.sequence_number,
            run.block,
            run.at,
            run.verdict,
            run.reason,
            run.runs,
            *encode_run(run),
            run.evidence,
            run.bundle,
            first,
        )

    def take_back(self, dataset: DatasetId, run: RecordedRun, before: RunPosition | None) -> None:
        """Replaces the verdict on a step that was run, and deletes those on later steps."""
        end = None if before is None else (before.sequence_number, before.block)
        self.forget_from(dataset, run.sequence_number, end)
        self.keep(dataset, run)
        if before is not None:
            self.keep_place(dataset, before)

    def forget_from(self, dataset: DatasetId, at: int, before: tuple[int, Multihash] | None) -> None:
        """Deletes the verdicts from a step on, and the position; ``before``: the step before it, which may keep one."""
        old = run_at(self.of(dataset), at)
        self._db.execute("DELETE FROM trust_runs WHERE dataset = ? AND sequence >= ?", (dataset, at))
        if old is not None and before is not None and old.starts <= before[0]:
            whole = None if old.starts == before[0] else old.starts
            self.keep(dataset, msgspec.structs.replace(old, sequence_number=before[0], block=before[1], first=whole))
        self._db.execute("DELETE FROM trust_replays WHERE dataset = ?", (dataset,))

    def looked_again(self, dataset: DatasetId) -> dict[int, Multihash]:
        """Returns the steps that were run six more times because others contradict them, with their blocks."""
        return {row[1]: Multihash(row[2]) for row in AGAIN.rows(self._db, "dataset = ?", (dataset,))}

    def note_again(self, dataset: DatasetId, step: int, block: Multihash, now: Instant) -> None:
        AGAIN.put(self._db, dataset, step, block, now)

    def of(self, dataset: DatasetId) -> dict[int, RecordedRun]:
        """Returns this node's own results in order, by the sequence number of a stretch's last step; see ``run_at``."""
        return {row[1]: read_run(row[1:]) for row in RUNS.rows(self._db, "dataset = ? ORDER BY sequence", (dataset,))}


def encode_run(run: RecordedRun) -> tuple[bytes, bytes | None]:
    """Encodes ``engine`` and ``actual`` as columns of a row."""
    actual = None if run.actual is None else msgspec.json.encode(run.actual, enc_hook=str)
    return msgspec.json.encode(run.engine), actual


def _engine(raw: bytes) -> statement.EngineUsed:
    """Reads the engine of a row; its seal vouches for it."""
    return msgspec.json.decode(raw, type=statement.EngineUsed)


def _actual(raw: bytes | None) -> Actual | None:
    """Reads the actual result of a row; its seal vouches for it."""
    return None if raw is None else msgspec.json.decode(raw, type=Actual, dec_hook=statement.from_text)


def run_at(runs: Mapping[int, RecordedRun], step: int) -> RecordedRun | None:
    """Looks up a step in the result of ``Runs.of``."""
    ends = list(runs)
    place = bisect_left(ends, step)
    if place == len(ends):
        return None
    run = runs[ends[place]]
    return run if run.starts <= step else None


def read_run(row: Row) -> RecordedRun:
    """Decodes a row from the column ``sequence`` on."""
    sequence, block, at, verdict, reason, runs, engine, actual, evidence, bundle, first = row
    return RecordedRun(
        sequence_number=sequence,
        first=first,
        block=Multihash(block),
        at=Instant(at),
        verdict=verdict,
        reason=reason,
        runs=runs,
        engine=_engine(engine),
        actual=_actual(actual),
        evidence=evidence,
        bundle=None if bundle is None else Multihash(bundle),
    )


CONFIRMED: Final = "confirmed"
UNFIT: Final = "unfit"
"""Result of a bundle that is no evidence, or evidence of something else."""
UNTRUE: Final = frozenset({"refuted", "incomplete", UNFIT})
"""Results that count against the signer who named the bundle."""
UNABLE: Final = "unable"
BACKOFF: Final = 24 * 3600 * instant.SECOND
"""Time for which nothing more is fetched from a group whose evidence was untrue."""


class Recheck(msgspec.Struct, frozen=True, kw_only=True):
    """The result of checking one bundle."""

    bundle: Multihash
    dataset: DatasetId
    group: str
    """The group that named the bundle."""
    result: str
    """A result of ``odfd.trust.validation.recheck``, or ``UNFIT``."""
    run: RecordedRun
    """The step and its chain; its ``verdict`` is empty if it must not count."""


class Rechecks:
    """Stores the results of one node's re-checks, over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def keep(self, found: Recheck, sids: Iterable[Multihash], policy: Multihash) -> None:
        """Keeps a result, and logs it as a decision that rests on these statements."""
        run = found.run
        RECHECKED.put(
            self._db,
            found.bundle,
            found.dataset,
            run.sequence_number,
            run.block,
            run.at,
            found.group,
            found.result,
            run.reason,
            run.verdict,
            run.runs,
            *encode_run(run),
            run.evidence,
        )
        decision: dict[str, canonical.Json] = {
            "decision": "recheck",
            "bundle": str(found.bundle),
            "sequenceNumber": run.sequence_number,
            "result": found.result,
            "verdict": run.verdict,
            "policy": str(policy),
            "sids": [*sorted(str(sid) for sid in sids)],
        }
        Ledger(self._db).decide(found.dataset, canonical.encode(decision), run.at)

    def of(self, dataset: DatasetId) -> dict[Multihash, Recheck]:
        """Returns the results on a dataset by bundle."""
        return {Multihash(row[0]): _recheck(row) for row in RECHECKED.rows(self._db, "dataset = ?", (dataset,))}

    def untrue(self, bundles: Collection[Multihash]) -> frozenset[Multihash]:
        """Returns those of the bundles whose accusation was refuted."""
        rows = (RECHECKED.one(self._db, "bundle = ?", (bundle,)) for bundle in bundles)
        return frozenset(Multihash(row[0]) for row in rows if row is not None and row[6] in UNTRUE)

    def resting(self, now: Instant) -> frozenset[str]:
        """Returns groups whose evidence was refuted less than a day ago."""
        rows = RECHECKED.rows(self._db, "at > ?", (now - BACKOFF,))
        return frozenset(str(row[5]) for row in rows if row[6] in UNTRUE)


def with_rechecks(
    runs: Mapping[int, RecordedRun], rechecks: Iterable[Recheck], hash_at: Callable[[int], Multihash | None]
) -> dict[int, RecordedRun]:
    """Adds the results of re-checks to a node's own runs, as far as they are about blocks held here, ascending.

    An accusation that this node confirmed takes precedence over its other findings about the step.
    """
    found: dict[int, RecordedRun] = {}
    for recheck in sorted(rechecks, key=lambda each: (each.result != CONFIRMED, each.bundle)):
        at = recheck.run.sequence_number
        if recheck.run.verdict and run_at(runs, at) is None and hash_at(at) == recheck.run.block:
            found.setdefault(at, recheck.run)
    return dict(sorted({**runs, **found}.items())) if found else dict(runs)


def _recheck(row: Row) -> Recheck:
    bundle, dataset, sequence, block, at, group, result, reason, verdict, runs, engine, actual, evidence = row
    return Recheck(
        bundle=Multihash(bundle),
        dataset=DatasetId(dataset),
        group=group,
        result=result,
        run=read_run((sequence, block, at, verdict, reason, runs, engine, actual, evidence, bundle, None)),
    )
