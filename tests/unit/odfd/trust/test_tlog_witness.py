"""A node asked as a public witness: every answer of tlog-witness, and that the same tree stays the same signature."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from chain import instant
from chain.instant import Instant
from chain.statements import cosignature, submission
from chain.statements.checkpoint import TreeCheckpoint
from chain.statements.cosignature import Cosignature
from chain.statements.keys import SigningKey
from chain.statements.submission import Submission
from chain.statements.tree import Frontier, Tree
from chain.store.database import open_database
from odfd.store.keys.keystore import KeyStore
from odfd.store.ledger.log import ROOM, STEPS
from odfd.store.ledger.tables import WITNESSED
from odfd.trust.witness.tlog_witness import RATE, TlogWitness
from odfd.trust.witness.witness import AGAIN, Witness
from p2p.web.client import HttpAnswer

OWNER, STRANGER = SigningKey(b"o" * 32), SigningKey(b"x" * 32)
NOW = instant.parse("2026-11-20T08:00:00Z")
LEAVES = [bytes([number]) * 32 for number in range(20)]
OTHERS = [*LEAVES[:6], *(bytes([number + 100]) * 32 for number in range(14))]


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
        attended = {OWNER.dataset_id}
        self.desk = TlogWitness(self.database, self.keys, witness, lambda: attended, self.clock, self.made.append)

    def clock(self) -> Instant:
        return Instant(self.now)

    def ask(self, old: int, size: int, leaves: Sequence[bytes] = LEAVES, start: int | None = None) -> HttpAnswer:
        return self.desk.add_checkpoint(request(old, size, leaves, start=start).encode())

    def at(self, size: int) -> Office:
        assert self.ask(0, size).status == 200
        return self


def tree(size: int, leaves: Sequence[bytes] = LEAVES) -> TreeCheckpoint:
    return TreeCheckpoint(OWNER.dataset_id, 0, size, Frontier().extend(leaves[:size]).root)


def request(
    old: int, size: int, leaves: Sequence[bytes] = LEAVES, by: SigningKey = OWNER, start: int | None = None
) -> Submission:
    """``start``: where the proof begins, if not at ``old``."""
    first = old if start is None else start
    nodes = Tree(lambda low, high: leaves[low:high]).consistency(first, size) if 0 < first <= size else []
    new = tree(size, leaves)
    return Submission(old=old, proof=tuple(nodes), tree=new, lines=(submission.sign_note(by, new),))


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    made = Office(tmp_path)
    yield made
    made.database.close()


def test_checkpoints_are_cosigned_one_after_the_other(office: Office) -> None:
    for old, size in ((0, 5), (5, 8), (8, 13)):
        answer = office.ask(old, size)
        made = cosignature.verify(tree(size), answer.body.decode())
        assert (answer.status, made.witness, made.at) == (200, office.keys.node_key().did, NOW)
    assert [each.checkpoint.size for each in office.made] == [5, 8, 13]
    with office.database.read() as connection:
        row = WITNESSED.one(connection, "origin = ?", (tree(13).origin,))
        assert (row[1], bytes(row[4])) == (13, request(8, 13).encode()), "the evidence, where there is no head"


STATUSES = {
    "a size that was not the last": (5, 13, LEAVES, None, HttpAnswer(409, b"8\n")),
    "the first again": (0, 13, LEAVES, None, HttpAnswer(409, b"8\n")),
    "another of the same size": (8, 8, OTHERS, None, 422),
    "another history": (8, 13, OTHERS, None, 422),
    "the proof from elsewhere": (8, 13, LEAVES, 5, 422),
    "a smaller tree": (8, 5, LEAVES, None, 400),
    "an older tree": (0, 5, LEAVES, None, HttpAnswer(409, b"8\n")),
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
        ({"lines": (submission.sign_note(STRANGER, tree(8)),)}, 403),
        ({"lines": (submission.sign_note(OWNER, tree(7)),)}, 403),
        ({"lines": (submission.sign_note(OWNER, tree(8)), submission.sign_note(OWNER, tree(7)))}, 403),
        ({"lines": (submission.sign_note(STRANGER, tree(8)), submission.sign_note(OWNER, tree(8)))}, 200),
        ({"lines": ("— other/kind " + "A" * 2000 + "\n", submission.sign_note(OWNER, tree(8)))}, 200),
        ({"tree": msgspec.structs.replace(tree(8), epoch=1)}, 404),
        ({"tree": msgspec.structs.replace(tree(8), epoch=None)}, 404),
        ({"tree": msgspec.structs.replace(tree(8), dataset=STRANGER.dataset_id)}, 404),
    ],
)
def test_only_who_may_write_is_heard(office: Office, change: dict[str, object], status: int) -> None:
    assert office.desk.add_checkpoint(msgspec.structs.replace(request(0, 8), **change).encode()).status == status


def test_other_logs_and_garbage_are_told_apart(office: Office) -> None:
    other = request(0, 8).encode().replace(b"did:odf:f", b"example.com/f")
    assert office.desk.add_checkpoint(other).status == 404
    for garbage in (b"", b"old 0", b"old 0\n\n", b"\xff" * 100, b"x" * 100_000, request(0, 8).encode() + b"x"):
        assert office.desk.add_checkpoint(garbage).status == 400, garbage[:20]


def test_the_same_tree_is_given_the_same_for_a_while(office: Office) -> None:
    """Whoever asks and asks costs no write."""
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
