"""Notes, requests and cosignatures that torchwood made of our tree: read, and made alike but for what is dated."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from chain.statements import checkpoint, cosignature, submission
from chain.statements.checkpoint import COSIGNATURE_KEY, NOTE_KEY, TreeCheckpoint
from chain.statements.keys import SigningKey
from chain.statements.submission import Submission
from chain.statements.tree import Frontier, Tree
from odfd.trust.witness.witness import NOTHING, ConsistencyResult, KnownTree, rule, shown_by

VECTORS: dict[str, Any] = json.loads((Path(__file__).with_name("vectors.json")).read_text())
CASES = {f"{case['old']} to {case['size']}": case for case in VECTORS["cases"]}
LOG, WITNESS = SigningKey(b"o" * 32), SigningKey(b"w" * 32)
DATASET = SigningKey(b"d" * 32).dataset_id
LEAVES = [bytes([number]) * 32 for number in range(13)]


def tree_of(size: int) -> TreeCheckpoint:
    return TreeCheckpoint(DATASET, 2, size, Frontier().extend(LEAVES[:size]).root)


def test_keys_are_written_alike() -> None:
    log = submission.log_key(tree_of(1), LOG.public)
    assert (log.name, log.encode()) == (VECTORS["origin"], VECTORS["logKey"])
    witness = checkpoint.decode_verifier_key(VECTORS["witnessKey"])
    assert (witness.name, witness.kind, witness.public_key) == ("witness.example/w1", COSIGNATURE_KEY, WITNESS.public)
    assert checkpoint.decode_verifier_key(VECTORS["logKey"]).kind == NOTE_KEY


@pytest.mark.parametrize("name", CASES)
def test_requests_are_made_and_read_alike(name: str) -> None:
    case = CASES[name]
    old, size, tree = case["old"], case["size"], tree_of(case["size"])
    nodes = Tree(lambda start, stop: LEAVES[start:stop]).consistency(old, size) if old else []
    assert [base64.b64encode(node).decode() for node in nodes] == case["proof"]
    made = Submission(old=old, proof=tuple(nodes), tree=tree, lines=(submission.sign_note(LOG, tree),))
    assert made.encode().decode() == case["request"]
    assert submission.decode(case["request"].encode()) == made
    assert case["request"].endswith("\n\n" + case["note"])
    assert submission.is_signed_by(tree, made.lines[0], checkpoint.decode_verifier_key(VECTORS["logKey"]))


@pytest.mark.parametrize("name", CASES)
def test_proofs_of_others_are_followed(name: str) -> None:
    case = CASES[name]
    read = submission.decode(case["request"].encode())
    new, old = KnownTree(read.tree.size, read.tree.root_hash), case["old"]
    known = (KnownTree(old, tree_of(old).root_hash),) if old else ()
    assert rule(known, read.old, new, shown_by(read.proof, read.old, new)) is ConsistencyResult.COSIGN
    if old:
        other = (KnownTree(old, b"?" * 32),)
        assert rule(other, read.old, new, shown_by(read.proof, read.old, new)) is ConsistencyResult.UNPROVEN
    else:
        assert read.old == NOTHING.size


@pytest.mark.parametrize("name", CASES)
def test_cosignatures_of_others_travel(name: str) -> None:
    """Attack T-HEAD-06: a cosignature under another name.

    Defence: names are not signed: the key counts, and nodes derive the name from it.
    """
    case = CASES[name]
    (line,) = submission.decode_answer(case["cosignature"].encode())
    key = checkpoint.decode_verifier_key(VECTORS["witnessKey"])
    made = cosignature.verify(tree_of(case["size"]), line, key)
    assert (made.witness, cosignature.decode(made.encode())) == (WITNESS.did, made), "as of any witness among nodes"
    assert cosignature.cosign(WITNESS, made.checkpoint, made.at) == made, "what is signed does not hold the name"
    assert cosignature.line_of(key, checkpoint.decode_line(made.line).data) == line, "and its line can be had again"
