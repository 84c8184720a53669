"""Which proofs are kept: a join, whatever order they come in; and what a person settled of a fork."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain import instant
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import envelope, proof, statement
from chain.statements.keys import SigningKey
from chain.statements.proof import Proof
from chain.statements.statement import Attestation, HeadStatement, Span
from chain.statements.tree import Frontier
from odfd.store.ledger.log import STEPS
from odfd.store.ledger.proofs import Proofs
from odfd.store.ledger.resolutions import BRANCH, Resolution, Resolutions

NOW = instant.parse("2026-11-20T08:00:00Z")
OWNER = SigningKey(b"o" * 32)
MINE = [b"m%31d" % number for number in range(10)]


def branch(at: int) -> list[bytes]:
    return [*MINE[:at], *(b"%2d%30d" % (at, number) for number in range(at, 10))]


def head(leaves: Sequence[bytes], seconds: int) -> bytes:
    tree = Frontier().extend(leaves)
    said = HeadStatement(
        dataset=OWNER.dataset_id,
        epoch=0,
        size=tree.size,
        root_hash=tree.root,
        authority=0,
        issued_at=statement.when(Instant(NOW + seconds * instant.SECOND)),
        expires_at="2026-11-27T08:00:00Z",
        head=Multihash.sha3_256(leaves[-1]),
    )
    return envelope.seal(statement.encode(said), OWNER)


def forked(at: int, seconds: int) -> Proof:
    theirs = branch(at)
    return proof.fork(
        head(MINE, 0),
        head(theirs, seconds),
        lambda start, stop: MINE[start:stop],
        lambda start, stop: theirs[start:stop],
    )


def voted_twice(validator: int, verdict: str) -> Proof:
    key = SigningKey(bytes([validator]) * 32)

    def vote(said: str) -> bytes:
        body = Attestation(
            validator=key.did,
            dataset=OWNER.dataset_id,
            epoch=0,
            size=10,
            root_hash=b"r" * 32,
            serial=1,
            determinism="strict",
            finished_at=statement.when(NOW),
            spans=(Span(first=0, last=9, verdict=said),),
            head=Multihash.sha3_256(b"head"),
        )
        return envelope.seal(statement.encode(body), key)

    return proof.double_vote(vote("reproduced"), vote(verdict))


FORKS = [forked(at, seconds) for at in (3, 6, 8) for seconds in (0, 1, 2)]
VOTES = [voted_twice(validator, verdict) for validator in (1, 2) for verdict in ("not-attempted", "mismatch")]


def kept(heard: Sequence[Proof], settled: int | None = None) -> tuple[set[Multihash], int | None]:
    connection = sqlite3.connect(":memory:")
    for step in STEPS:
        connection.executescript(step)
    if settled is not None:
        made = Resolution(matter=BRANCH, number=0, place=settled, name=Multihash.sha3_256(b"block"), at=NOW)
        Resolutions(connection).keep(OWNER.dataset_id, made)
    proofs = Proofs(connection)
    for each in heard:
        proofs.keep(each)
    found = {each.id for each in proofs.of(OWNER.dataset_id)}
    answer = found, proofs.forked_at(OWNER.dataset_id, 0)
    assert proofs.is_forked(OWNER.dataset_id) == any(each.kind == proof.FORK for each in heard)
    connection.close()
    return answer


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([*FORKS, *VOTES]), min_size=1, max_size=10), st.randoms(), st.sampled_from([None, 3, 6])
)
def test_any_order_of_hearing_leaves_the_same_proofs(heard: list[Proof], rng, settled: int | None) -> None:
    shuffled = heard * 2
    rng.shuffle(shuffled)
    assert kept(shuffled, settled) == kept(heard, settled)


def test_of_one_place_the_lowest_id_is_kept() -> None:
    alike = FORKS[:3]
    assert kept(alike)[0] == kept(alike[::-1])[0] == {min(each.id for each in alike)}
    votes = VOTES[:2]
    assert kept(votes)[0] == kept(votes[::-1])[0] == {min(each.id for each in votes)}


def test_a_fork_beyond_what_was_settled_stops_again() -> None:
    early, late = FORKS[0], FORKS[6]
    assert kept([early, late]) == ({early.id}, 3)
    assert kept([early, late], 6) == kept([late, early], 6) == ({early.id, late.id}, 8)
    assert kept([early], 6) == ({early.id}, None)
