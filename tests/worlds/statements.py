"""Statements of keys that nobody has heard of: made, signed, and written as they come from a peer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chain import instant
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.keys import SigningKey
from chain.statements.statement import Attestation, Authority, EngineUsed, HeadStatement, Roots, Span, Writer
from p2p.ports import PeerId

NOW: Final = instant.parse("2026-11-20T08:00:00Z")
UNTIL: Final = "2027-06-01T00:00:00Z"
PEER: Final = PeerId("12D3KooWPeer")


def key(number: int) -> SigningKey:
    return SigningKey(number.to_bytes(32, "big"))


def head(
    owner: SigningKey, size: int = 8, late: int = 0, *, root: bytes = b"r" * 32, by: SigningKey | None = None,
    version: int = 0, node: KeyDid | None = None, upper: int | None = None,
) -> bytes:  # fmt: skip
    """``late``: seconds after NOW; ``version``: of the authority under which it is signed."""
    at = Instant(NOW + late * instant.SECOND)
    said = HeadStatement(
        dataset=owner.dataset_id, epoch=0, size=size, root_hash=root, authority=version,
        issued_at=statement.when(at), expires_at=statement.when(Instant(at + 86400 * instant.SECOND)),
        node=node, upper=upper, head=Multihash.sha3_256(b"block %d" % size),
    )  # fmt: skip
    return envelope.seal(statement.encode(said), by or owner)


def attestation(validator: SigningKey, dataset: DatasetId, serial: int = 1, previous: Multihash | None = None) -> bytes:
    said = Attestation(
        validator=validator.did, dataset=dataset, epoch=0, size=8, root_hash=b"r" * 32, serial=serial,
        previous=previous, determinism="strict", finished_at=statement.when(NOW),
        engines=(EngineUsed(name="spark", digest="sha256:0", pinned=True, sandbox="host", platform="linux/amd64"),),
        spans=(Span(first=0, last=7, verdict="reproduced", state="genesis", engine=0),),
        head=Multihash.sha3_256(b"block 8"),
    )  # fmt: skip
    return envelope.seal(statement.encode(said), validator)


def authority(
    owner: SigningKey, version: int, previous: Multihash | None, writers: Sequence[SigningKey] = ()
) -> tuple[bytes, Multihash]:
    """Sealed, and its id. ``writers``: beside the owner."""
    said = Authority(
        dataset=owner.dataset_id, version=version, previous=previous, issued_at=statement.when(NOW),
        roots=Roots(threshold=1, keys=(owner.did,)), head=Multihash.sha3_256(b"seed"),
        writers=tuple(Writer(key=each.did, expires_at=UNTIL) for each in (owner, *writers)),
    )  # fmt: skip
    payload = statement.encode(said)
    return envelope.seal(payload, owner), envelope.sid(payload)
