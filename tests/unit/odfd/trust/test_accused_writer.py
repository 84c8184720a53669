"""A bundle against a writer that the authority names: it brings the walk, so that whoever checks needs nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from chain import instant
from chain.errors import Invalid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import canonical, envelope, statement
from chain.statements.keys import SigningKey
from chain.statements.statement import Actual, Authority, HeadStatement, Roots, Writer
from odfd.trust.evidence.bundle import BUNDLE, BundleManifest, decode_manifest

OWNER, NODE = SigningKey(b"d" * 32), SigningKey(b"n" * 32)
NOW = instant.parse("2026-11-20T08:00:00Z")


def form(sealed: bytes) -> Any:
    return canonical.decode(sealed)


def version_one(by: SigningKey = OWNER) -> bytes:
    said = Authority(
        dataset=OWNER.dataset_id, version=1, issued_at=statement.when(NOW), head=Multihash.sha3_256(b"seed"),
        roots=Roots(threshold=1, keys=(OWNER.did,)),
        writers=tuple(Writer(key=key.did, expires_at="2027-06-01T00:00:00Z") for key in (OWNER, NODE)),
    )  # fmt: skip
    return envelope.seal(statement.encode(said), by)


def manifest(by: SigningKey = NODE, *versions: bytes, at: Instant = NOW) -> BundleManifest:
    said = HeadStatement(
        dataset=OWNER.dataset_id, epoch=0, size=8, root_hash=b"r" * 32, authority=1, issued_at=statement.when(at),
        expires_at=statement.when(Instant(at + 86400 * instant.SECOND)), head=Multihash.sha3_256(b"block"),
    )  # fmt: skip
    return BundleManifest(
        type=BUNDLE, head=form(envelope.seal(statement.encode(said), by)), sequence_number=7, objects=(),
        actual=Actual(records=1), authority=tuple(map(form, versions)),
    )  # fmt: skip


def test_the_walk_comes_with_the_bundle() -> None:
    made = manifest(NODE, version_one())
    assert decode_manifest(made.encode()) == made
    head, signed = made.accused()
    assert (head.authority, signed.signers) == (1, (NODE.did,))


def test_nothing_is_written_where_there_is_no_later_version() -> None:
    plain = msgspec.structs.replace(manifest(NODE, version_one()), authority=())
    assert b"authority" not in plain.encode().replace(b"payload", b"")


@pytest.mark.parametrize(
    ("made", "rule"),
    [
        (manifest(NODE), "bundle-authority"),
        (manifest(SigningKey(b"x" * 32), version_one()), "bundle-head"),
        (manifest(NODE, version_one(by=NODE)), "authority-signatures"),
        (manifest(NODE, version_one(), at=instant.parse("2027-06-01T00:00:00Z")), "bundle-head"),
    ],
)
def test_a_head_that_no_writer_signed_accuses_nobody(made: BundleManifest, rule: str) -> None:
    with pytest.raises(Invalid) as caught:
        made.accused()
    assert caught.value.rule == rule


def test_only_authorities_stand_in_the_walk() -> None:
    made = manifest(NODE, version_one())
    with pytest.raises(Invalid, match="something else"):
        msgspec.structs.replace(made, authority=(made.head,)).accused()
