"""Which signed heads are looked at again after one of them broke a rule, and when."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Invalid
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from chain.statements.statement import HeadStatement
from chain.store.database import open_database
from odfd.mirrors.first_contact import (
    ENOUGH,
    EXPECTED,
    FIRST_SIGHT,
    NETWORKS,
    PAUSES,
    WITNESSED,
    DeclinedHeads,
    FirstContact,
    rung_of,
)
from odfd.policy.witness_quorum import Witnesses
from odfd.store.ledger import log
from odfd.store.mirror_specs import MirrorSpec

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


@pytest.mark.slow
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


def test_a_first_contact_is_shown_as_what_it_was(tmp_path: Path) -> None:
    """Two networks may be one attacker's; three count, and only where neither a hash nor witnesses were asked for."""
    now = instant.parse("2026-11-20T08:00:00Z")
    with closing(open_database(tmp_path / "odfd.sqlite")) as database:
        database.migrate(log.ROOM, log.STEPS)
        for expect, quorum, networks, rung in (
            (None, 0, 0, FIRST_SIGHT),
            (None, 0, ENOUGH - 1, FIRST_SIGHT),
            (None, 0, ENOUGH, NETWORKS),
            (None, 2, ENOUGH, WITNESSED),
            (str(head(1).head), 2, 0, EXPECTED),
        ):
            first = FirstContact(partial(Witnesses, quorum=quorum), lambda: now)
            with database.write() as connection:
                first.keep(connection, msgspec.structs.replace(SPEC, expect=expect), networks)
            with database.read() as connection:
                assert rung_of(connection, DATASET) == rung
    assert ENOUGH >= 3
