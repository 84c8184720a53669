"""Witnesses: what they sign, with and without a copy, their quorums, and how they are asked."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Fault, Invalid, Refused
from chain.instant import SECOND, Instant
from chain.multihash import Multihash
from chain.statements import checkpoint, cosignature, envelope, statement, submission
from chain.statements import proof as proof_between
from chain.statements.checkpoint import COSIGNATURE_KEY, NOTE_KEY, TreeCheckpoint, VerifierKey
from chain.statements.cosignature import Cosignature
from chain.statements.keys import SigningKey
from chain.statements.statement import HeadStatement
from chain.statements.submission import Submission
from chain.statements.tree import Frontier, Tree, is_consistent
from chain.store.database import open_database
from odfd.policy.policy import parse_expression
from odfd.policy.witness_quorum import (
    PublicWitness,
    TreeRoots,
    Witnesses,
    behind,
    load_witnesses,
    read_witness,
    witnessed,
)
from odfd.store.keys.keystore import KeyStore
from odfd.store.ledger.cosignatures import Cosignatures
from odfd.store.ledger.log import ROOM, STEPS, Ledger
from odfd.store.ledger.proofs import Proofs
from odfd.store.ledger.tables import WITNESSED
from odfd.trust.judgement.verdicts import ChainExtent, DatasetStatus, Decision, reach
from odfd.trust.witness.submission import (
    LATE,
    SOON,
    Effect,
    SubmissionAccepted,
    SubmissionFailed,
    SubmissionRequest,
    Submitter,
)
from odfd.trust.witness.tlog_witness import RATE, TlogWitness
from odfd.trust.witness.witness import (
    AGAIN,
    NOTHING,
    RENEW,
    ConsistencyResult,
    CosignRequest,
    KnownTree,
    Witness,
    last_of,
    proven_after,
    rule,
    shown_by,
)
from p2p.web.client import HttpAnswer
from worlds.statements import head_statement

# A node asked as a public witness: every answer of tlog-witness, and that the same tree stays the same signature.

ASKING, STRANGER = SigningKey(b"o" * 32), SigningKey(b"x" * 32)
NOW = instant.parse("2026-11-20T08:00:00Z")
ASKED_LEAVES = [bytes([number]) * 32 for number in range(20)]
OTHERS = [*ASKED_LEAVES[:6], *(bytes([number + 100]) * 32 for number in range(14))]


class Office:
    """A desk over a state directory; all it made, as it was told of."""

    def __init__(self, folder: Path) -> None:
        self.database = open_database(folder / "db")
        self.database.migrate(ROOM, STEPS)
        self.keys = KeyStore(folder / "keys", lambda size: b"w" * size)
        self.keys.node_key()
        self.now = int(NOW)
        self.made: list[Cosignature] = []
        witness = Witness(self.database, self.keys, lambda *_: [], self.clock)
        attended = {ASKING.dataset_id}
        self.desk = TlogWitness(self.database, self.keys, witness, lambda: attended, self.clock, self.made.append)

    def clock(self) -> Instant:
        return Instant(self.now)

    def ask(self, old: int, size: int, leaves: Sequence[bytes] = ASKED_LEAVES, start: int | None = None) -> HttpAnswer:
        return self.desk.add_checkpoint(request(old, size, leaves, start=start).encode())

    def at(self, size: int) -> Office:
        assert self.ask(0, size).status == 200
        return self


def asked_tree(size: int, leaves: Sequence[bytes] = ASKED_LEAVES) -> TreeCheckpoint:
    return TreeCheckpoint(ASKING.dataset_id, 0, size, Frontier().extend(leaves[:size]).root)


def request(
    old: int, size: int, leaves: Sequence[bytes] = ASKED_LEAVES, by: SigningKey = ASKING, start: int | None = None
) -> Submission:
    """``start``: where the proof begins, if not at ``old``."""
    first = old if start is None else start
    nodes = Tree(lambda low, high: leaves[low:high]).consistency(first, size) if 0 < first <= size else []
    new = asked_tree(size, leaves)
    return Submission(old=old, proof=tuple(nodes), tree=new, lines=(submission.sign_note(by, new),))


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    made = Office(tmp_path)
    yield made
    made.database.close()


def test_checkpoints_are_cosigned_one_after_the_other(office: Office) -> None:
    for old, size in ((0, 5), (5, 8), (8, 13)):
        answer = office.ask(old, size)
        made = cosignature.verify(asked_tree(size), answer.body.decode())
        assert (answer.status, made.witness, made.at) == (200, office.keys.node_key().did, NOW)
    assert [each.checkpoint.size for each in office.made] == [5, 8, 13]
    with office.database.read() as connection:
        row = WITNESSED.one(connection, "origin = ?", (asked_tree(13).origin,))
        assert (row[1], bytes(row[4])) == (13, request(8, 13).encode()), "the evidence, where there is no head"


STATUSES = {
    "a size that was not the last": (5, 13, ASKED_LEAVES, None, HttpAnswer(409, b"8\n")),
    "the first again": (0, 13, ASKED_LEAVES, None, HttpAnswer(409, b"8\n")),
    "another of the same size": (8, 8, OTHERS, None, 422),
    "another history": (8, 13, OTHERS, None, 422),
    "the proof from elsewhere": (8, 13, ASKED_LEAVES, 5, 422),
    "a smaller tree": (8, 5, ASKED_LEAVES, None, 400),
    "an older tree": (0, 5, ASKED_LEAVES, None, HttpAnswer(409, b"8\n")),
}


@pytest.mark.parametrize("name", STATUSES)
def test_what_does_not_follow_is_answered_by_the_book(office: Office, name: str) -> None:
    old, size, leaves, start, expected = STATUSES[name]
    answer = office.at(8).ask(old, size, leaves, start)
    assert expected in (answer, answer.status)
    assert [each.checkpoint.size for each in office.made] == [8]
    assert office.ask(8, 13).status == 200


def test_a_proof_where_none_is_needed_is_refused(office: Office) -> None:
    assert office.ask(0, 8, start=4).status == 422


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"lines": (submission.sign_note(STRANGER, asked_tree(8)),)}, 403),
        ({"lines": (submission.sign_note(ASKING, asked_tree(7)),)}, 403),
        ({"lines": (submission.sign_note(ASKING, asked_tree(8)), submission.sign_note(ASKING, asked_tree(7)))}, 403),
        ({"lines": (submission.sign_note(STRANGER, asked_tree(8)), submission.sign_note(ASKING, asked_tree(8)))}, 200),
        ({"lines": ("— other/kind " + "A" * 2000 + "\n", submission.sign_note(ASKING, asked_tree(8)))}, 200),
        ({"tree": msgspec.structs.replace(asked_tree(8), epoch=1)}, 404),
        ({"tree": msgspec.structs.replace(asked_tree(8), epoch=None)}, 404),
        ({"tree": msgspec.structs.replace(asked_tree(8), dataset=STRANGER.dataset_id)}, 404),
    ],
)
def test_only_who_may_write_is_heard(office: Office, change: dict[str, object], status: int) -> None:
    """Attack T-HEAD-06: submissions to a witness over HTTP without a writer's signature, or for another log.

    Defence: the key must be a writer's in the current epoch.
    """
    assert office.desk.add_checkpoint(msgspec.structs.replace(request(0, 8), **change).encode()).status == status


def test_other_logs_and_garbage_are_told_apart(office: Office) -> None:
    other = request(0, 8).encode().replace(b"did:odf:f", b"example.com/f")
    assert office.desk.add_checkpoint(other).status == 404
    for garbage in (b"", b"old 0", b"old 0\n\n", b"\xff" * 100, b"x" * 100_000, request(0, 8).encode() + b"x"):
        assert office.desk.add_checkpoint(garbage).status == 400, garbage[:20]


def test_the_same_tree_is_given_the_same_for_a_while(office: Office) -> None:
    """Attack T-HEAD-06: submissions without end.

    Defence: a limit of requests a second; the same tree within an hour gets the same cosignature without a write.

    Whoever asks and asks costs no write.
    """
    first = office.ask(0, 8)
    assert office.ask(8, 8) == first
    assert len(office.made) == 1
    office.now += AGAIN
    later = office.ask(8, 8)
    assert (later.status, later == first, len(office.made)) == (200, False, 2)


@pytest.mark.slow
def test_so_many_requests_are_taken_at_once(office: Office) -> None:
    asked = [office.ask(0, 8).status for _ in range(int(RATE.burst) + 1)]
    assert (asked[0], asked[-2:]) == (200, [409, 429])
    office.now += instant.SECOND
    assert office.ask(8, 8).status == 200


# Quorums of witnesses: what prevents a split view, what only detects it, and how far a chain is witnessed (S4).

DAY = 86400 * instant.SECOND
KEYS = [SigningKey(bytes([number]) * 32) for number in range(1, 8)]
QUORATE = SigningKey(b"o" * 32).dataset_id
LEAVES = [b"m%31d" % number for number in range(10)]
BRANCH = [*LEAVES[:6], *(b"t%31d" % number for number in range(4))]


def root(leaves: Sequence[bytes]) -> bytes:
    return Frontier().extend(leaves).root


def made(key: SigningKey, size: int, at: int = NOW, leaves: Sequence[bytes] = LEAVES, epoch: int = 0) -> Cosignature:
    return cosignature.cosign(key, TreeCheckpoint(QUORATE, epoch, size, root(leaves[:size])), Instant(at))


def three(**more: int) -> Witnesses:
    return Witnesses(groups={key.did: f"w{number}" for number, key in enumerate(KEYS[:3])}, **more)


def roots_at(sizes: Sequence[int]) -> Mapping[int, bytes]:
    return {size: root(LEAVES[:size]) for size in sizes}


def how_far(*cosigned: Cosignature, witnesses: Witnesses | None = None) -> tuple[int, ...]:
    return witnessed(witnesses or three(), cosigned, len(LEAVES), roots_at, NOW)


def test_how_far_each_group_has_cosigned() -> None:
    assert how_far(made(KEYS[0], 9), made(KEYS[1], 4), made(KEYS[2], 10)) == (10, 9, 4)
    assert how_far(made(KEYS[0], 4, epoch=0), made(KEYS[0], 7, epoch=1)) == (7,), "a group counts once"


@pytest.mark.parametrize(
    "other",
    [
        made(KEYS[5], 9),
        made(KEYS[0], 9, NOW - 7 * DAY - instant.SECOND),
        made(KEYS[0], 9, leaves=BRANCH),
        made(KEYS[0], 8, leaves=BRANCH[::-1]),
    ],
    ids=["a stranger", "too old", "another branch", "another tree"],
)
def test_what_does_not_count(other: Cosignature) -> None:
    assert how_far(other, made(KEYS[1], 5)) == (5,)


def test_a_tree_beyond_mine_is_not_mine_yet() -> None:
    assert witnessed(three(), [made(KEYS[0], 9)], 8, roots_at, NOW) == ()


def test_reach_ends_where_the_quorum_ends() -> None:
    extent = ChainExtent(linked=10, chain=10, data=9, witnessed=(10, 7, 3))

    def pending(_: int) -> Decision:
        return Decision(DatasetStatus.PENDING)

    for expression, blocks, by in [
        ("witnessed:1", 10, "head"),
        ("data & witnessed:2", 7, "witnessed"),
        ("data & witnessed:3", 3, "witnessed"),
        ("data & witnessed:1", 9, "data"),
        ("data | witnessed:2", 9, "data"),
        ("witnessed:4", 0, "witnessed"),
    ]:
        found = reach(parse_expression(expression), extent, [], pending)
        assert (found.blocks, found.why.rule) == (blocks, by), expression
    found = reach(parse_expression("data & (witnessed:2 | attested:1)"), extent, [4, 8], pending)
    assert (found.blocks, found.why.rule) == (8, "pending")


@given(st.integers(1, 7), st.data())
def test_split_needs_faulty_quorum(groups: int, data: st.DataObject) -> None:
    """Attack T-HEAD-06: split view.

    Defence: of n witness groups with f faulty ones, floor((n+f)/2)+1 prevent it where policy requires them
    (`witnessed:Q`, `[witness] quorum`); fewer only detect it, and loading such a policy warns.

    An honest witness signs one side, a faulty one both: however they fall, two sides never both have a quorum.
    """
    faulty = data.draw(st.integers(0, groups - 1))
    witnesses = Witnesses(groups={key.did: str(key.did) for key in KEYS[:groups]}, faulty=faulty)
    honest = groups - faulty
    ways = [(faulty + one, faulty + honest - one) for one in range(honest + 1)]
    assert all(min(sides) < witnesses.preventing for sides in ways)
    assert any(min(sides) == witnesses.preventing - 1 for sides in ways), "one less lets both sides through"


def test_only_the_tree_of_a_head_is_behind_it() -> None:
    head = head_statement(QUORATE, 9, root(LEAVES[:9]), head=Multihash.sha3_256(b"head"))
    cosigned = [made(KEYS[0], 9), made(KEYS[0], 9), made(KEYS[1], 9, epoch=1), made(KEYS[2], 8), made(KEYS[4], 9)]
    assert behind(three(), head, cosigned, NOW) == 1
    assert behind(three(), head, [*cosigned, made(KEYS[2], 9)], NOW) == 2
    assert behind(three(), head, cosigned, Instant(NOW + 8 * DAY)) == 0


def test_a_root_is_asked_for_once() -> None:
    trees: list[Tree] = []

    def tree() -> Tree:
        trees.append(Tree(lambda start, stop: LEAVES[start:stop]))
        return trees[-1]

    roots, ends = TreeRoots(), {size: Multihash.sha3_256(LEAVES[size - 1]) for size in range(1, 11)}
    for sizes in ([3, 7], [3, 7], [7, 9], []):
        assert roots.at(sizes, ends, tree) == {size: root(LEAVES[:size]) for size in sizes}
    assert len(trees) == 2


# A witness that holds no blocks: whatever is shown to it in whatever order, it stands on one history of an origin.

OWNER = SigningKey(b"o" * 32)
DATASET = OWNER.dataset_id
COMMON = [bytes([number]) * 32 for number in range(12)]
BRANCHES = (COMMON, *([*COMMON[:at], *(bytes([50 * at + n]) * 32 for n in range(12 - at))] for at in (1, 2, 4)))


def head(branch: int, size: int, at: Instant = NOW) -> tuple[HeadStatement, bytes]:
    leaves = BRANCHES[branch][:size]
    said = head_statement(DATASET, size, Frontier().extend(leaves).root, at=at, head=Multihash.sha3_256(leaves[-1]))
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
    """Attack T-HEAD-06: two proofs for one dataset at a time.

    Defence: the last cosigned tree is compared again in the transaction that stores the new one.

    Compared and stored in one transaction: the race of tlog-witness, which would roll ten blocks back to seven.
    """
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
    made = proof_between.fork(head(0, 8)[1], head(3, 9)[1], lambda a, b: ours[a:b], lambda a, b: theirs[a:b])
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
    """Attack T-HEAD-06: a second history shown to a witness without a copy.

    Defence: a tree is cosigned only after a proof that it extends the last cosigned one, whatever the order of heads,
    proofs and crashes.

    Every peer proves what it can of the branch that it holds; the database may come back empty, the journal not.
    """
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


# Whether a tree may be cosigned: the rules of tlog-witness as a table.

SHORT_LEAVES = [bytes([number]) * 32 for number in range(20)]
SHORT_OTHERS = [*SHORT_LEAVES[:6], *(bytes([number + 100]) * 32 for number in range(14))]


def tree_of(size: int, leaves: list[bytes] = SHORT_LEAVES) -> KnownTree:
    return KnownTree(size, Frontier().extend(leaves[:size]).root)


def proof(old: int, new: int, leaves: list[bytes] = SHORT_LEAVES) -> list[bytes]:
    return Tree(lambda start, stop: leaves[start:stop]).consistency(old, new)


CASES = {
    "the first of an origin": ((), 0, tree_of(8), [], ConsistencyResult.COSIGN),
    "the first, of no leaves at all": ((), 0, NOTHING, [], ConsistencyResult.COSIGN),
    "the first, with a proof of nothing": ((), 0, tree_of(8), proof(4, 8), ConsistencyResult.UNPROVEN),
    "the first, said to follow what was never cosigned": ((), 4, tree_of(8), proof(4, 8), ConsistencyResult.CONFLICT),
    "the next": ((tree_of(5),), 5, tree_of(13), proof(5, 13), ConsistencyResult.COSIGN),
    "the next of a power of two": ((tree_of(8),), 8, tree_of(9), proof(8, 9), ConsistencyResult.COSIGN),
    "the same again": ((tree_of(8),), 8, tree_of(8), [], ConsistencyResult.COSIGN),
    "the same again, with a proof too many": ((tree_of(8),), 8, tree_of(8), [bytes(32)], ConsistencyResult.UNPROVEN),
    "of the same size another": ((tree_of(8),), 8, tree_of(8, SHORT_OTHERS), [], ConsistencyResult.UNPROVEN),
    "a fork, with its own proof": (
        (tree_of(8),),
        8,
        tree_of(13, SHORT_OTHERS),
        proof(8, 13, SHORT_OTHERS),
        ConsistencyResult.UNPROVEN,
    ),
    "a fork, with our proof": ((tree_of(8),), 8, tree_of(13, SHORT_OTHERS), proof(8, 13), ConsistencyResult.UNPROVEN),
    "a branch that left later": (
        (tree_of(6),),
        6,
        tree_of(13, SHORT_OTHERS),
        proof(6, 13, SHORT_OTHERS),
        ConsistencyResult.COSIGN,
    ),
    "an old proof": ((tree_of(5), tree_of(8)), 5, tree_of(13), proof(5, 13), ConsistencyResult.CONFLICT),
    "an old proof, told as new": ((tree_of(5), tree_of(8)), 8, tree_of(13), proof(5, 13), ConsistencyResult.UNPROVEN),
    "without a proof": ((tree_of(5),), 5, tree_of(13), [], ConsistencyResult.UNPROVEN),
    "a proof cut short": ((tree_of(5),), 5, tree_of(13), proof(5, 13)[:-1], ConsistencyResult.UNPROVEN),
    "a proof with more": ((tree_of(5),), 5, tree_of(13), [*proof(5, 13), bytes(32)], ConsistencyResult.UNPROVEN),
    "a proof longer than any tree is high": (
        (tree_of(5),),
        5,
        tree_of(13),
        [bytes(32)] * 70,
        ConsistencyResult.UNPROVEN,
    ),
    "a smaller tree": ((tree_of(8),), 8, tree_of(5), [], ConsistencyResult.SMALLER),
    "a smaller tree, told as the first": ((tree_of(8),), 0, tree_of(5), [], ConsistencyResult.CONFLICT),
    "two of one size were cosigned": (
        (tree_of(8), tree_of(8, SHORT_OTHERS)),
        8,
        tree_of(13),
        proof(8, 13),
        ConsistencyResult.UNPROVEN,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_tree_is_cosigned_after_what_it_is_shown_to_continue(name: str) -> None:
    """Attack T-HEAD-06: a consistency proof of another tree, an outdated one, one of a fork, or none.

    Defence: the rules of tlog-witness, as a table.
    """
    known, old, new, nodes, expected = CASES[name]
    assert rule(known, old, new, shown_by(nodes, old, new)) is expected


def test_what_was_proven_by_peers_is_proven_of_that_tree_alone() -> None:
    begins = proven_after(tree_of(8))
    assert rule((tree_of(5), tree_of(8)), 8, tree_of(13), begins) is ConsistencyResult.COSIGN
    assert rule((tree_of(5), tree_of(8, SHORT_OTHERS)), 8, tree_of(13), begins) is ConsistencyResult.UNPROVEN
    assert rule((tree_of(9),), 8, tree_of(13), begins) is ConsistencyResult.CONFLICT, "another was cosigned meanwhile"
    assert (last_of(()), last_of((tree_of(5), tree_of(8)))) == (NOTHING, tree_of(8))


# Asking a public witness: what each of its answers leads to.

LOG, KEY, OTHER = SigningKey(b"o" * 32), SigningKey(b"w" * 32), SigningKey(b"x" * 32)
SUBMITTED = SigningKey(b"d" * 32).dataset_id
SUBMITTED_LEAVES = [bytes([number]) * 32 for number in range(13)]
NAME = "witness.example/w1"
VKEY = checkpoint.verifier_key(NAME, COSIGNATURE_KEY, KEY.public)
WITNESS = read_witness(f"{VKEY} https://witness.example/base/")


def submitted_tree(size: int = 13) -> TreeCheckpoint:
    return TreeCheckpoint(SUBMITTED, 0, size, Frontier().extend(SUBMITTED_LEAVES[:size]).root)


def line(key: SigningKey = KEY, of: TreeCheckpoint | None = None, at: Instant = NOW, name: str = NAME) -> bytes:
    data = checkpoint.decode_line(cosignature.cosign(key, of or submitted_tree(), at).line).data
    return cosignature.line_of(VerifierKey(name, COSIGNATURE_KEY, key.public), data).encode()


def prove(old: int) -> Sequence[bytes]:
    return Tree(lambda start, stop: SUBMITTED_LEAVES[start:stop]).consistency(old, 13)


def asking(old: int = 5) -> Submitter:
    return Submitter(WITNESS, submitted_tree(), submission.sign_note(LOG, submitted_tree()), old, prove, NOW)


def sent(effect: Effect) -> submission.Submission:
    assert isinstance(effect, SubmissionRequest)
    return submission.decode(effect.body)


def test_the_first_question_holds_the_proof_from_what_is_known() -> None:
    for old in (0, 5, 13):
        read = sent(asking(old).start())
        assert (read.old, list(read.proof), read.tree) == (old, list(prove(old)) if old else [], submitted_tree())
        (signed,) = read.lines
        assert submission.is_signed_by(submitted_tree(), signed, submission.log_key(submitted_tree(), LOG.public))
        assert not submission.is_signed_by(submitted_tree(12), signed, submission.log_key(submitted_tree(), LOG.public))


def test_a_cosignature_of_the_witness_is_taken_among_others() -> None:
    lines = [line(OTHER, name="witness.example/w2"), "— witness.example/w1 AAAAAAAAAA==\n".encode(), line()]
    got = asking().handle(200, b"".join(lines))
    assert isinstance(got, SubmissionAccepted)
    assert got.made == cosignature.cosign(KEY, submitted_tree(), NOW), "under its did:key, as all nodes spell it"
    assert cosignature.decode(got.made.encode()) == got.made


NO_COSIGNATURE = {
    "nothing": b"",
    "no lines": b"ok\n",
    "a line without an end": line()[:-1],
    "another key under its name": line(OTHER),
    "of another tree": line(of=submitted_tree(12)),
    "of another time": line(at=Instant(NOW + SECOND)),
    "not text": b"\xff\xfe\n",
    "too many": line() * 17,
    "too much": b"x" * (submission.MAX_ANSWER + 1),
}


@pytest.mark.parametrize("name", NO_COSIGNATURE)
def test_what_is_no_cosignature_is_not_believed(name: str) -> None:
    """Attack T-HEAD-06: a public witness that is slow, wrong, unavailable, or sends huge answers.

    Defence: requests to it are outside of commits, with growing pauses; answers have limits, and only the line of its
    own key is read.
    """
    ended = asking().handle(200, NO_COSIGNATURE[name])
    assert isinstance(ended, SubmissionFailed), ended
    assert ended.again == LATE


def test_a_witness_that_stands_elsewhere_is_asked_from_there() -> None:
    machine = asking(0)
    machine.start()
    read = sent(machine.handle(409, b"8\n"))
    assert (read.old, list(read.proof)) == (8, list(prove(8)))
    read = sent(machine.handle(409, b"0\n"))
    assert (read.old, read.proof) == (0, ())
    ended = machine.handle(409, b"8\n")
    assert isinstance(ended, SubmissionFailed), "it does not make up its mind"


REFUSALS = {
    "larger than ours": (409, b"14\n", LATE, "cosigned 14"),
    "the same size": (409, b"5\n", SOON, "twice"),
    "no size": (409, b"conflict\n", SOON, "not which"),
    "a size with zeros": (409, b"08\n", SOON, "not which"),
    "unknown log": (404, b"unknown log\n", LATE, "does not know this log"),
    "unknown key": (403, b"", LATE, "does not know the key"),
    "another history": (422, b"", LATE, "another history"),
    "bad request": (400, b"", LATE, "cannot read"),
    "too often": (429, b"", SOON, "429"),
    "broken": (500, b"<html>" * 100, SOON, "500"),
    "elsewhere": (302, b"", SOON, "302"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_told_and_tried_again_in_time(name: str) -> None:
    status, body, again, told = REFUSALS[name]
    ended = asking().handle(status, body)
    assert isinstance(ended, SubmissionFailed)
    assert (ended.again, told in ended.message) == (again, True), ended


@pytest.mark.parametrize(
    "text",
    [
        VKEY,
        f"{VKEY} ftp://witness.example",
        f"{VKEY} https://user:secret@witness.example",
        f"{checkpoint.verifier_key(NAME, NOTE_KEY, KEY.public)} https://witness.example",
        f"{VKEY.replace('+', '+0', 1)} https://witness.example",
        f"witness.example https://witness.example {VKEY}",
        f"{checkpoint.verifier_key(NAME, COSIGNATURE_KEY, bytes(32))} https://witness.example",
    ],
)
def test_only_whole_witnesses_are_read(text: str) -> None:
    with pytest.raises(Invalid):
        read_witness(text)


def test_a_witness_is_asked_below_its_prefix_and_counts_by_its_key() -> None:
    assert PublicWitness(checkpoint.decode_verifier_key(VKEY), "https://witness.example/base") == WITNESS
    assert (WITNESS.submit, WITNESS.did) == ("https://witness.example/base/add-checkpoint", KEY.did)
    by_name, _ = load_witnesses([("w1", [VKEY])])
    by_key, _ = load_witnesses([("w1", [str(KEY.did)])])
    assert by_name == by_key
    _, mistakes = load_witnesses([("w1", [VKEY]), ("w2", [str(KEY.did)])])
    assert "in group w1 too" in mistakes[0]
    _, mistakes = load_witnesses([("log", [checkpoint.verifier_key(NAME, NOTE_KEY, KEY.public)])])
    assert "no witness" in mistakes[0]
