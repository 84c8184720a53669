"""Chooses between two statements of one authority version by witnesses, if no block of the dataset is held.

A node that holds blocks keeps the version it holds and asks a person. A new node holds no version yet: it takes the one
that a quorum of witnesses stands behind, if there is one, and else asks a person too. The versions of an authority form
a log like any other: its leaves are their sids, its size is the number of the newest.
Spec: docs/spec/trust.md#authority-forks, #witnesses.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import canonical
from chain.statements.authority import Rights
from chain.statements.checkpoint import TreeCheckpoint
from chain.statements.proof import AUTHORITY_FORK, Proof
from chain.statements.tree import Frontier
from odfd.policy.witness_quorum import Witnesses, standing_behind
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.cosignatures import Cosignatures
from odfd.store.ledger.live_set import hold_instead
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.proofs import Proofs
from odfd.store.ledger.resolutions import VERSION, Resolution, Resolutions
from odfd.trust.judgement.manual_resolution import versions_of


def log_of(dataset: DatasetId, sids: Iterable[Multihash]) -> TreeCheckpoint:
    """Returns the tree over versions 1, 2, … of an authority."""
    tree = Frontier().extend(sid.digest for sid in sids)
    return TreeCheckpoint(dataset, None, tree.size, tree.root)


def settle(connection: sqlite3.Connection, dataset: DatasetId, witnesses: Witnesses, now: Instant) -> Multihash | None:
    """Follows the version that has a quorum, if nothing of the dataset is here.

    Returns the sid of the version; ``None`` if nothing is settled by it.
    """
    authorities, ledger = Authorities(connection), Ledger(connection)
    if not witnesses.quorum or ledger.chain(dataset).frontier.size:
        return None
    walk = authorities.walk(dataset)
    held = walk[-1].sid
    settled = Resolutions(connection).of(dataset).version(walk[-1].version)
    found = [] if settled else _forks(connection, dataset, walk)
    if held is None or not found:
        return None
    others = {signed.sid: (rival, signed) for each in found for rival, signed in versions_of(each, held).others}
    before = [each.sid for each in walk[1:-1] if each.sid is not None]
    made = Cosignatures(connection).of(dataset)
    counts = {sid: standing_behind(witnesses, log_of(dataset, [*before, sid]), made, now) for sid in (held, *others)}
    enough = [sid for sid, count in counts.items() if count >= witnesses.quorum]
    # Two quorums: more witnesses are faulty than the policy expects, and a person decides.
    if len(enough) != 1:
        return None
    (chosen,) = enough
    if chosen in others:
        hold_instead(connection, *others[chosen])
    version = walk[-1].version
    resolution = Resolution(matter=VERSION, number=version, place=counts[chosen], name=chosen, at=now)
    Resolutions(connection).keep(dataset, resolution)
    decision: dict[str, canonical.Json] = {
        "decision": "witnesses",
        "follow": str(chosen),
        "groups": counts[chosen],
        "rests": [str(each.id) for each in found],
    }
    ledger.decide(dataset, canonical.encode(decision), now)
    return chosen


def _forks(connection: sqlite3.Connection, dataset: DatasetId, walk: Sequence[Rights]) -> list[Proof]:
    version = walk[-1].version
    return [each for each in Proofs(connection).of(dataset) if (each.kind, each.epoch) == (AUTHORITY_FORK, version)]
