"""Asking a public witness: what each of its answers leads to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from chain import instant
from chain.errors import Invalid
from chain.instant import SECOND, Instant
from chain.statements import checkpoint, cosignature, submission
from chain.statements.checkpoint import COSIGNATURE_KEY, NOTE_KEY, TreeCheckpoint, VerifierKey
from chain.statements.keys import SigningKey
from chain.statements.tree import Frontier, Tree
from odfd.policy.witness_quorum import PublicWitness, load_witnesses, read_witness
from odfd.trust.witness.submission import (
    LATE,
    SOON,
    Effect,
    SubmissionAccepted,
    SubmissionFailed,
    SubmissionRequest,
    Submitter,
)

LOG, KEY, OTHER = SigningKey(b"o" * 32), SigningKey(b"w" * 32), SigningKey(b"x" * 32)
DATASET = SigningKey(b"d" * 32).dataset_id
LEAVES = [bytes([number]) * 32 for number in range(13)]
NAME = "witness.example/w1"
VKEY = checkpoint.verifier_key(NAME, COSIGNATURE_KEY, KEY.public)
WITNESS = read_witness(f"{VKEY} https://witness.example/base/")
NOW = instant.parse("2026-11-20T08:00:00Z")


def tree(size: int = 13) -> TreeCheckpoint:
    return TreeCheckpoint(DATASET, 0, size, Frontier().extend(LEAVES[:size]).root)


def line(key: SigningKey = KEY, of: TreeCheckpoint | None = None, at: Instant = NOW, name: str = NAME) -> bytes:
    data = checkpoint.decode_line(cosignature.cosign(key, of or tree(), at).line).data
    return cosignature.line_of(VerifierKey(name, COSIGNATURE_KEY, key.public), data).encode()


def prove(old: int) -> Sequence[bytes]:
    return Tree(lambda start, stop: LEAVES[start:stop]).consistency(old, 13)


def asking(old: int = 5) -> Submitter:
    return Submitter(WITNESS, tree(), submission.sign_note(LOG, tree()), old, prove, NOW)


def sent(effect: Effect) -> submission.Submission:
    assert isinstance(effect, SubmissionRequest)
    return submission.decode(effect.body)


def test_the_first_question_holds_the_proof_from_what_is_known() -> None:
    for old in (0, 5, 13):
        read = sent(asking(old).start())
        assert (read.old, list(read.proof), read.tree) == (old, list(prove(old)) if old else [], tree())
        (signed,) = read.lines
        assert submission.is_signed_by(tree(), signed, submission.log_key(tree(), LOG.public))
        assert not submission.is_signed_by(tree(12), signed, submission.log_key(tree(), LOG.public))


def test_a_cosignature_of_the_witness_is_taken_among_others() -> None:
    lines = [line(OTHER, name="witness.example/w2"), "— witness.example/w1 AAAAAAAAAA==\n".encode(), line()]
    got = asking().handle(200, b"".join(lines))
    assert isinstance(got, SubmissionAccepted)
    assert got.made == cosignature.cosign(KEY, tree(), NOW), "under its did:key, as all nodes spell it"
    assert cosignature.decode(got.made.encode()) == got.made


NO_COSIGNATURE = {
    "nothing": b"",
    "no lines": b"ok\n",
    "a line without an end": line()[:-1],
    "another key under its name": line(OTHER),
    "of another tree": line(of=tree(12)),
    "of another time": line(at=Instant(NOW + SECOND)),
    "not text": b"\xff\xfe\n",
    "too many": line() * 17,
    "too much": b"x" * (submission.MAX_ANSWER + 1),
}


@pytest.mark.parametrize("name", NO_COSIGNATURE)
def test_what_is_no_cosignature_is_not_believed(name: str) -> None:
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
