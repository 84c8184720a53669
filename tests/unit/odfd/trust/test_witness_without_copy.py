"""A witness that holds no blocks: whatever is shown to it in whatever order, it stands on one history of an origin."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Fault, Refused
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import envelope, proof, statement
from chain.statements.cosignature import Cosignature
from chain.statements.keys import SigningKey
from chain.statements.statement import HeadStatement
from chain.statements.tree import Frontier, Tree, is_consistent
from chain.store.database import open_database
from odfd.store.keys.keystore import KeyStore
from odfd.store.ledger.cosignatures import Cosignatures
from odfd.store.ledger.log import ROOM, STEPS, Ledger
from odfd.store.ledger.proofs import Proofs
from odfd.store.ledger.tables import WITNESSED
from odfd.trust.witness.witness import RENEW, CosignRequest, KnownTree, Witness

OWNER = SigningKey(b"o" * 32)
DATASET = OWNER.dataset_id
NOW = instant.parse("2026-11-20T08:00:00Z")
COMMON = [bytes([number]) * 32 for number in range(12)]
BRANCHES = (COMMON, *([*COMMON[:at], *(bytes([50 * at + n]) * 32 for n in range(12 - at))] for at in (1, 2, 4)))


def head(branch: int, size: int, at: Instant = NOW) -> tuple[HeadStatement, bytes]:
    leaves = BRANCHES[branch][:size]
    said = HeadStatement(
        dataset=DATASET,
        epoch=0,
        size=size,
        root_hash=Frontier().extend(leaves).root,
        authority=0,
        issued_at=statement.when(at),
        expires_at=statement.when(Instant(at + 7 * 86400 * instant.SECOND)),
        head=Multihash.sha3_256(leaves[-1]),
    )
    return said, envelope.seal(statement.encode(said), OWNER)


class Desk:
    """A witness's state directory, and the witness over it, as often as one likes."""

    def __init__(self, folder: Path) -> None:
        self.database = open_database(folder / "db")
        self.database.migrate(ROOM, STEPS)
        self.folder = folder
        self.now = int(NOW)
        self.start()

    def start(self) -> None:
        self.keys = KeyStore(self.folder / "keys", lambda size: b"w" * size)
        self.keys.node_key()
        self.witness = Witness(self.database, self.keys, lambda *_: [], lambda: Instant(self.now))

    def hear(self, branch: int, size: int) -> None:
        """The newest head known is this one, whatever came before: order of hearing is not what protects."""
        with self.database.write() as connection:
            signed = envelope.unseal(head(branch, size)[1], statement.MAX_ANY)
            Ledger(connection).follow(DATASET, signed, NOW)

    def forget(self) -> None:
        """The database comes back from a backup that knew nothing; the journal is in none."""
        with self.database.write() as connection:
            connection.execute("DELETE FROM trust_witnessed")
            connection.execute("DELETE FROM trust_cosignatures")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.database.close()


def settled(desk: Desk, branch: int) -> Cosignature | None:
    """As it goes with one peer that holds this branch and tells the truth of it."""
    asked = desk.witness.question(DATASET)
    if asked is None or (asked.needs_proof and not proves(branch, asked)):
        return None
    return desk.witness.settle(asked)


def proves(branch: int, asked: CosignRequest) -> bool:
    leaves = BRANCHES[branch]
    nodes = Tree(lambda start, stop: leaves[start:stop]).consistency(asked.old.size, asked.tree.size)
    return is_consistent(*asked.old, asked.tree.size, asked.tree.root_hash, nodes)


def test_each_head_is_cosigned_after_a_proof_from_the_last(desk: Desk) -> None:
    assert desk.witness.question(DATASET) is None, "nothing was heard of it"
    desk.hear(0, 5)
    first = desk.witness.question(DATASET)
    assert first is not None
    assert (first.needs_proof, first.old.size, first.kept) == (False, 0, None)
    made = desk.witness.settle(first)
    assert made is not None
    assert (made.checkpoint, made.witness) == (first.tree, desk.keys.node_key().did)
    assert desk.witness.question(DATASET) is None
    desk.hear(0, 9)
    later = desk.witness.question(DATASET)
    assert later is not None
    assert (later.needs_proof, later.old, later.kept) == (True, KnownTree(5, first.tree.root_hash), head(0, 5)[1])
    assert desk.witness.settle(later) is not None
    with desk.database.read() as connection:
        row = WITNESSED.one(connection, "origin = ?", (later.tree.origin,))
        assert (row[1], bytes(row[2]), bytes(row[4])) == (9, later.tree.root_hash, head(0, 9)[1])
    desk.now += RENEW
    again = desk.witness.question(DATASET)
    assert again is not None
    assert not again.needs_proof, "the same tree, told anew"
    assert desk.witness.settle(again) is not None


def test_a_proof_that_another_overtook_makes_no_cosignature(desk: Desk) -> None:
    """Compared and stored in one transaction: the race of tlog-witness, which would roll ten blocks back to seven."""
    desk.hear(0, 5)
    assert settled(desk, 0) is not None
    desk.hear(0, 7)
    slow = desk.witness.question(DATASET)
    assert slow is not None
    desk.hear(0, 10)
    assert settled(desk, 0) is not None
    with pytest.raises(Refused) as caught:
        desk.witness.settle(slow)
    assert caught.value.rule == "trust.moved"


@pytest.mark.parametrize(("branch", "size"), [(1, 8), (1, 5), (0, 5)], ids=["same size", "smaller", "smaller, true"])
def test_what_can_follow_by_no_proof_is_refused_unasked(desk: Desk, branch: int, size: int) -> None:
    desk.hear(0, 8)
    assert settled(desk, 0) is not None
    desk.hear(branch, size)
    with pytest.raises(Refused) as caught:
        desk.witness.question(DATASET)
    assert caught.value.rule == "trust.behind"


def test_nothing_of_a_forked_epoch_is_cosigned(desk: Desk) -> None:
    ours, theirs = BRANCHES[0], BRANCHES[3]
    made = proof.fork(head(0, 8)[1], head(3, 9)[1], lambda a, b: ours[a:b], lambda a, b: theirs[a:b])
    desk.hear(0, 8)
    asked = desk.witness.question(DATASET)
    assert asked is not None
    with desk.database.write() as connection:
        Proofs(connection).keep(made)
    for refused in (lambda: desk.witness.question(DATASET), lambda: desk.witness.settle(asked)):
        with pytest.raises(Refused) as caught:
            refused()
        assert caught.value.rule == "trust.forked"
    desk.hear(0, 4)
    assert settled(desk, 0) is not None, "what all agree on is below the fork"


class Cut(Exception):
    """The machine stops here."""


STEPS_OF_ONE = ("before", "noted", "left")
MOVES = st.one_of(
    st.tuples(st.just("head"), st.integers(0, 3), st.integers(1, 12)),
    st.tuples(st.just("cut"), st.sampled_from(STEPS_OF_ONE), st.integers(0, 3)),
    st.tuples(st.just("late"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("forget"), st.just(0), st.just(0)),
)


def agree(one: Cosignature, other: Cosignature) -> bool:
    """Whether one of two cosigned trees begins the other, on some branch."""
    small, large = sorted((one.checkpoint, other.checkpoint), key=lambda tree: tree.size)
    return any(
        Frontier().extend(leaves[: small.size]).root == small.root_hash
        and Frontier().extend(leaves[: large.size]).root == large.root_hash
        for leaves in BRANCHES
    )


def cut_at(desk: Desk, place: str) -> None:
    """The next cosignature ends at this step: before the journal, after it, or after all was committed."""
    note = desk.keys.note

    def noting(*args: Any) -> None:
        if place == "before":
            raise Cut
        note(*args)
        if place == "noted":
            raise Cut

    desk.keys.note = noting  # type: ignore[method-assign]


@pytest.mark.slow
@given(st.lists(MOVES, min_size=2, max_size=14))
def test_no_order_of_heads_and_crashes_makes_a_witness_stand_on_two_sides(moves: list[tuple[str, Any, int]]) -> None:
    """Every peer proves what it can of the branch that it holds; the database may come back empty, the journal not."""
    with TemporaryDirectory() as folder:
        desk = Desk(Path(folder))
        left: list[Cosignature] = []
        waiting: list[CosignRequest] = []
        refused: set[str] = set()
        try:
            for what, first, second in moves:
                try:
                    if what == "head":
                        desk.hear(first, second)
                        asked = desk.witness.question(DATASET)
                        if asked is not None and (not asked.needs_proof or proves(first, asked)):
                            waiting.append(asked)
                            made = desk.witness.settle(asked)
                            left += [made] if made is not None else []
                    elif what == "late" and waiting:
                        made = desk.witness.settle(waiting[first % len(waiting)])
                        left += [made] if made is not None else []
                    elif what == "cut":
                        cut_at(desk, first)
                        desk.now += RENEW
                        settled(desk, second)
                    elif what == "forget":
                        desk.forget()
                except Cut:
                    pass
                except Fault as fault:
                    refused.add(fault.rule)
                if what == "cut":
                    desk.start()
        finally:
            desk.database.close()
    assert refused <= {"trust.behind", "trust.moved"}
    assert all(agree(one, other) for one, other in itertools.combinations(left, 2))


def test_a_cut_before_the_cosignature_leaves_binds_the_witness_all_the_same(desk: Desk) -> None:
    desk.hear(1, 5)
    cut_at(desk, "noted")
    with pytest.raises(Cut):
        settled(desk, 1)
    with desk.database.read() as connection:
        assert (WITNESSED.one(connection, "1", ()), Cosignatures(connection).of(DATASET)) == (None, [])
    desk.start()
    desk.hear(0, 8)
    asked = desk.witness.question(DATASET)
    assert asked is not None
    assert (asked.needs_proof, asked.old.size, proves(0, asked)) == (True, 5, False)
    desk.hear(1, 8)
    assert settled(desk, 1) is not None
