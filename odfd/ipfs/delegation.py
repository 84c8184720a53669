"""Delegates the IPNS name of a dataset whose key is offline: a long-lived record by that key points to a writer's name.

The record is made where the key is, and checked where it is published. docs/spec/trust.md#ipns; ADR 9.
"""

from __future__ import annotations

from typing import Final

from chain import instant
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.statements.keys import SigningKey
from p2p.ipfs import record
from p2p.ipfs.record import Pointer

LIFETIME: Final = 400 * 86400 * instant.SECOND
"""Nanoseconds that a record is valid: as long as a writer's right may last."""
TTL: Final = 3600 * instant.SECOND


def delegate(key: SigningKey, name: str, now: Instant) -> bytes:
    """Signs the record by which the IPNS name of ``key`` points to ``name``, that of a node."""
    sequence = now // instant.SECOND
    return record.seal(Pointer(value=f"/ipns/{name}", sequence=sequence, expires=Instant(now + LIFETIME), ttl=TTL), key)


def check_delegation(raw: bytes, dataset: DatasetId, name: str) -> None:
    """Raises Invalid unless the record is signed by the dataset's own key and points to ``name``."""
    pointer = record.unseal(raw, dataset)
    if pointer.value != f"/ipns/{name}":
        raise Invalid(
            f"the delegation points to {pointer.value[:80]!r}, not to this node's name",
            rule="ipns-delegation",
            hint=f"it has to point to /ipns/{name}",
        )
