"""Makes the file that says which shards of a repository belong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.card import Card, CardShards, ChainFacts, PublisherClaims
from chain.statements.keys import SigningKey
from chain.statements.statement import HeadStatement
from p2p.wire.frames import frame

KEYS = [SigningKey(bytes([number]) * 32) for number in range(4)]
TIMES: dict[str, Any] = {"issued_at": statement.when(Instant(0)), "expires_at": statement.when(Instant(10**18))}


def _head(key: SigningKey, size: int, upper: int | None, first: DatasetId) -> bytes:
    said = HeadStatement(
        dataset=key.dataset_id, epoch=0, size=size, root_hash=bytes(32), authority=0, upper=upper, collection=first,
        head=Multihash.sha3_256(bytes([size % 256])), **TIMES,
    )  # fmt: skip
    return envelope.seal(statement.encode(said), key, as_dataset=True)


def card_of(keys: Sequence[SigningKey]) -> bytes:
    """The signed card of the first shard, which lists all."""
    first, public = keys[0].dataset_id, b"".join(each.dataset_id.public_key for each in keys)
    card = Card(
        dataset=first, author=keys[0].did, authority=0, epoch=0, size=1, head=Multihash.sha3_256(b""),
        chain=ChainFacts(kind="root", records=1, created_at=TIMES["issued_at"], updated_at=TIMES["issued_at"]),
        claims=PublisherClaims(name="cities"),
        shards=CardShards(function="xxhash64", by=("city",), keys=public),
        **TIMES,
    )  # fmt: skip
    return envelope.seal(statement.encode(card), keys[0], as_dataset=True)


def written(keys: Sequence[SigningKey], heads: Sequence[tuple[int, int | None]]) -> bytes:
    """``heads``: the size and the upper of each shard."""
    first = keys[0].dataset_id
    signed = [_head(key, *each, first) for key, each in zip(keys, heads, strict=True)]
    return b"".join(map(frame, (card_of(keys), *signed)))
