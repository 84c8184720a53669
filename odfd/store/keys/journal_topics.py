"""Names the topics of the signing journal: one for each thing on which a key must not contradict itself.

A dataset's own key signs for one dataset only; another key signs for many, and its topics name them. Observations have
no topic: of two on one block the later one holds, and two accuse nobody. Spec: docs/spec/trust.md#journals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from chain.ids import DatasetId, KeyDid
from chain.multihash import Multihash
from chain.statements.checkpoint import TreeCheckpoint
from chain.statements.cosignature import Cosignature
from chain.statements.statement import ATTESTATION, AUTHORITY, HEAD, POLICY, AnyPredicate, HeadStatement
from odfd.store.keys.journal import JournalEntry

PROMISED: Final = "promised"
"""Subject of the entries of frontiers, which only grow."""


def head(key: KeyDid, dataset: DatasetId) -> str:
    return _of("head", key, dataset)


def upper(key: KeyDid, dataset: DatasetId) -> str:
    """Returns the topic of the frontiers that were signed with heads; its order is the frontier in milliseconds."""
    return _of("upper", key, dataset)


def authority(key: KeyDid, dataset: DatasetId) -> str:
    return _of("authority", key, dataset)


def attestation(dataset: DatasetId, epoch: int) -> str:
    return f"attestation:{dataset}:{epoch}"


def cosignature(tree: TreeCheckpoint) -> str:
    return f"cosign/{tree.origin}"


def policy(network: str) -> str:
    return f"policy/{network}"


def entries_of(key: KeyDid, predicate: AnyPredicate, sid: Multihash) -> list[tuple[str, JournalEntry]]:
    """Returns the journal entries of ``key`` for a statement: none for a kind that is not journalled."""
    make = _ENTRIES.get(predicate.KIND)
    found = [] if make is None else [make(key, predicate, sid)]
    if isinstance(predicate, HeadStatement) and predicate.upper is not None:
        found.append((upper(key, predicate.dataset), JournalEntry((predicate.upper,), PROMISED)))
    return found


def _head_entry(key: KeyDid, new: HeadStatement, _sid: Multihash) -> tuple[str, JournalEntry]:
    return head(key, new.dataset), JournalEntry((new.epoch, new.size), new.root_hash.hex())


_ENTRIES: Final[dict[str, Callable[[KeyDid, Any, Multihash], tuple[str, JournalEntry]]]] = {
    HEAD: _head_entry,
    AUTHORITY: lambda key, new, sid: (authority(key, new.dataset), JournalEntry((new.version,), str(sid))),
    ATTESTATION: lambda _, new, sid: (attestation(new.dataset, new.epoch), JournalEntry((new.serial,), str(sid))),
    POLICY: lambda _, new, sid: (policy(new.network), JournalEntry((new.version,), str(sid))),
}
"""The journal entry of each kind of statement that a key may not contradict."""
JOURNALLED: Final = frozenset(_ENTRIES)


def cosigned(made: Cosignature) -> tuple[str, JournalEntry]:
    tree = made.checkpoint
    return cosignature(tree), JournalEntry((tree.size,), tree.root_hash.hex())


def _of(what: str, key: KeyDid, dataset: DatasetId) -> str:
    return what if key.public_key == dataset.public_key else f"{what}/{dataset.multibase}"
