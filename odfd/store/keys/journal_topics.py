"""Names the topics of the signing journal: one for each thing on which a key must not contradict itself.

A dataset's own key signs for one dataset only; another key signs for many, and its topics name them. Observations have
no topic: of two on one block the later one holds, and two accuse nobody. Spec: docs/spec/trust.md#journals.
"""

from __future__ import annotations

from typing import Final

from chain.ids import DatasetId, KeyDid
from chain.statements.checkpoint import TreeCheckpoint
from chain.statements.cosignature import Cosignature
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


def cosigned(made: Cosignature) -> tuple[str, JournalEntry]:
    tree = made.checkpoint
    return cosignature(tree), JournalEntry((tree.size,), tree.root_hash.hex())


def _of(what: str, key: KeyDid, dataset: DatasetId) -> str:
    return what if key.public_key == dataset.public_key else f"{what}/{dataset.multibase}"
