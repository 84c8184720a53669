"""Stores this node's results of re-running steps, as stretches of blocks, and the position of its own replay.

Calls are synchronous, on the connection they are given; the tables are the ledger's.
Spec: docs/spec/trust.md#attestations.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

import msgspec

from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import statement
from chain.statements.statement import Actual
from chain.store.seals import Row
from odfd.store.ledger.tables import AGAIN, REPLAYS, RUNS

REPRODUCED: Final = "reproduced"


class Run(msgspec.Struct, frozen=True, kw_only=True):
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

    def keep(self, dataset: DatasetId, run: Run) -> None:
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

    def take_back(self, dataset: DatasetId, run: Run, before: RunPosition | None) -> None:
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

    def of(self, dataset: DatasetId) -> dict[int, Run]:
        """Returns this node's own results in order, by the sequence number of a stretch's last step; see ``run_at``."""
        return {row[1]: read_run(row[1:]) for row in RUNS.rows(self._db, "dataset = ? ORDER BY sequence", (dataset,))}


def encode_run(run: Run) -> tuple[bytes, bytes | None]:
    """Encodes ``engine`` and ``actual`` as columns of a row."""
    actual = None if run.actual is None else msgspec.json.encode(run.actual, enc_hook=str)
    return msgspec.json.encode(run.engine), actual


def _engine(raw: bytes) -> statement.EngineUsed:
    """Reads the engine of a row; its seal vouches for it."""
    return msgspec.json.decode(raw, type=statement.EngineUsed)


def _actual(raw: bytes | None) -> Actual | None:
    """Reads the actual result of a row; its seal vouches for it."""
    return None if raw is None else msgspec.json.decode(raw, type=Actual, dec_hook=statement.from_text)


def run_at(runs: Mapping[int, Run], step: int) -> Run | None:
    """Looks up a step in the result of ``Runs.of``."""
    ends = list(runs)
    place = bisect_left(ends, step)
    if place == len(ends):
        return None
    run = runs[ends[place]]
    return run if run.starts <= step else None


def read_run(row: Row) -> Run:
    """Decodes a row from the column ``sequence`` on."""
    sequence, block, at, verdict, reason, runs, engine, actual, evidence, bundle, first = row
    return Run(
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
