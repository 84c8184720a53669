"""Which signed heads are looked at again after one of them broke a rule, and when."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from chain.statements.statement import HeadStatement
from odfd.mirrors.first_contact import PAUSES, DeclinedHeads
from odfd.mirrors.mirror_spec import MirrorSpec

DATASET = SigningKey(b"d" * 32).dataset_id
SPEC = MirrorSpec(dataset=str(DATASET), name="theirs")
WRONG = Invalid("a slice is not what its block says", rule="slice-logical-hash")
DAY = 86_400


def head(number: int, epoch: int = 0) -> HeadStatement:
    return HeadStatement(
        dataset=DATASET,
        epoch=epoch,
        size=number,
        root_hash=number.to_bytes(32, "big"),
        authority=0,
        issued_at="2026-11-20T08:00:00Z",
        expires_at="2026-11-27T08:00:00Z",
        head=Multihash.sha3_256(b"%d" % number),
    )


@given(st.integers(1, 600))
def test_however_fast_a_publisher_signs(every: int) -> None:
    declined, looks = DeclinedHeads(), 0
    for at in range(0, DAY, every):
        if declined.why(SPEC, head(at + 1), at) is None:
            looks += 1
            declined.note(SPEC, head(at + 1), WRONG, at)
    assert 2 <= looks <= 13


def test_the_same_tree_never_and_another_epoch_or_spec_at_once() -> None:
    declined = DeclinedHeads()
    for number in range(1, 9):
        declined.note(SPEC, head(number), WRONG, 0.0)
    assert declined.why(SPEC, head(9), 1.0) is WRONG
    assert declined.why(SPEC, head(9), PAUSES.most) is None
    assert declined.why(SPEC, head(8), 10 * PAUSES.most) is WRONG
    assert declined.why(SPEC, head(8, epoch=1), 1.0) is None
    assert declined.why(msgspec.structs.replace(SPEC, want="chain"), head(9), 1.0) is None
    declined.forget(DATASET)
    assert declined.why(SPEC, head(8), 1.0) is None
