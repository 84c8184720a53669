"""Statements of keys that nobody has heard of: made, signed, and written as they come from a peer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

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
WEEK: Final = 7 * 86400 * instant.SECOND
ENGINE: Final = EngineUsed(name="spark", digest="sha256:0", pinned=True, sandbox="host", platform="linux/amd64")


def key(number: int) -> SigningKey:
    return SigningKey(number.to_bytes(32, "big"))


def head_statement(
    dataset: DatasetId, size: int, root: bytes = b"r" * 32, *, at: int = NOW, lasts: int = WEEK, **more: Any
) -> HeadStatement:
    """What a writer says of a chain, of which ``more`` may say otherwise."""
    terms: dict[str, Any] = {
        "epoch": 0, "authority": 0, "issued_at": statement.when(Instant(at)),
        "expires_at": statement.when(Instant(at + lasts)), "head": Multihash.sha3_256(b"block"), **more,
    }  # fmt: skip
    return HeadStatement(dataset=dataset, size=size, root_hash=root, **terms)


def head(
    owner: SigningKey, size: int = 8, late: int = 0, *, root: bytes = b"r" * 32, by: SigningKey | None = None,
    version: int = 0, node: KeyDid | None = None, upper: int | None = None,
) -> bytes:  # fmt: skip
    """``late``: seconds after NOW; ``version``: of the authority under which it is signed."""
    said = head_statement(
        owner.dataset_id, size, root, at=NOW + late * instant.SECOND, lasts=86400 * instant.SECOND, authority=version,
        node=node, upper=upper, head=Multihash.sha3_256(b"block %d" % size),
    )  # fmt: skip
    return envelope.seal(statement.encode(said), by or owner)


def attestation_statement(
    validator: KeyDid, dataset: DatasetId, size: int, root: bytes = b"r" * 32, **more: Any
) -> Attestation:
    """A validator reproduced all of a chain, if ``more`` does not say otherwise."""
    terms: dict[str, Any] = {
        "epoch": 0, "serial": 1, "determinism": "strict", "finished_at": statement.when(NOW), "engines": (ENGINE,),
        "spans": (Span(first=0, last=size - 1, verdict="reproduced", state="genesis", engine=0),),
        "head": Multihash.sha3_256(b"head"), **more,
    }  # fmt: skip
    return Attestation(validator=validator, dataset=dataset, size=size, root_hash=root, **terms)


def attestation(validator: SigningKey, dataset: DatasetId, serial: int = 1, previous: Multihash | None = None) -> bytes:
    last = Multihash.sha3_256(b"block 8")
    said = attestation_statement(validator.did, dataset, 8, serial=serial, previous=previous, head=last)
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
