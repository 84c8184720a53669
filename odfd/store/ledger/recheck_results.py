"""Stores the results of re-checking others' evidence; each counts as this node's own verdict.

Calls are synchronous, on the connection they are given. Spec: docs/spec/trust.md#bundles, #rechecks, #ledger.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec

from chain import instant
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import canonical
from chain.store.seals import Row
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.runs import Run, encode_run, read_run, run_at
from odfd.store.ledger.tables import RECHECKED

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
    run: Run
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
    runs: Mapping[int, Run], rechecks: Iterable[Recheck], hash_at: Callable[[int], Multihash | None]
) -> dict[int, Run]:
    """Adds the results of re-checks to a node's own runs, as far as they are about blocks held here, ascending.

    An accusation that this node confirmed takes precedence over its other findings about the step.
    """
    found: dict[int, Run] = {}
    for each in sorted(rechecks, key=lambda each: (each.result != CONFIRMED, each.bundle)):
        at = each.run.sequence_number
        if each.run.verdict and run_at(runs, at) is None and hash_at(at) == each.run.block:
            found.setdefault(at, each.run)
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
