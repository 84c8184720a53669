"""Trees of blocks, proofs of them, and who cosigns them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Invalid
from chain.instant import SECOND, Instant
from chain.statements import canonical, checkpoint, cosignature, envelope, proof
from chain.statements.checkpoint import TreeCheckpoint
from chain.statements.keys import SigningKey
from chain.statements.tree import (
    EMPTY_ROOT,
    Frontier,
    Tree,
    is_consistent,
    leaf_hash,
    node_hash,
    root_from_inclusion,
)

# RFC 6962 trees: the known vectors of Certificate Transparency, and every proof against a recursive definition.

VECTORS = [
    ("", "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"),
    ("00", "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"),
    ("10", "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77"),
    ("2021", "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7"),
    ("3031", "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4"),
    ("40414243", "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef"),
    ("5051525354555657", "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c"),
    ("606162636465666768696a6b6c6d6e6f", "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"),
]
"""Leaf, and the root once it is appended: the tree of the Certificate Transparency reference implementation."""


def by_definition(leaves: Sequence[bytes]) -> bytes:
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaf_hash(leaves[0])
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return node_hash(by_definition(leaves[:split]), by_definition(leaves[split:]))


def some_leaves(count: int) -> list[bytes]:
    return [hashlib.sha3_256(bytes([index & 255, index >> 8])).digest() for index in range(count)]


def tree_of(leaves: Sequence[bytes]) -> Tree:
    return Tree(lambda start, stop: leaves[start:stop])


def test_known_roots() -> None:
    frontier = Frontier()
    assert frontier.root == EMPTY_ROOT
    for leaf, root in VECTORS:
        frontier = frontier.append(bytes.fromhex(leaf))
        assert frontier.root.hex() == root


@given(st.integers(0, 70), st.integers(0, 70))
def test_frontier_is_the_tree_however_it_is_extended(first: int, second: int) -> None:
    leaves = some_leaves(first + second)
    frontier = Frontier().extend(leaves[:first]).extend(leaves[first:])
    assert frontier.root == by_definition(leaves) == tree_of(leaves).root(len(leaves))
    assert Frontier.from_bytes(frontier.to_bytes()) == frontier


@given(st.data(), st.integers(1, 70))
def test_inclusion(data: st.DataObject, size: int) -> None:
    leaves = some_leaves(size)
    index = data.draw(st.integers(0, size - 1))
    path = tree_of(leaves).inclusion(index, size)
    root = by_definition(leaves)
    assert root_from_inclusion(leaves[index], index, size, path) == root
    assert root_from_inclusion(b"other", index, size, path) != root
    if size > 1:
        assert root_from_inclusion(leaves[index], index, size, path[:-1]) != root
    assert root_from_inclusion(leaves[index], index, size, [*path, root]) != root
    assert root_from_inclusion(leaves[index], size, size, path) is None


@given(st.data(), st.integers(1, 70))
def test_consistency(data: st.DataObject, new: int) -> None:
    leaves = some_leaves(new)
    old = data.draw(st.integers(1, new))
    old_root, new_root = by_definition(leaves[:old]), by_definition(leaves)
    proof = tree_of(leaves).consistency(old, new)
    assert is_consistent(old, old_root, new, new_root, proof)
    assert not is_consistent(old, leaf_hash(b"other"), new, new_root, proof)
    if old < new:
        assert not is_consistent(old, old_root, new, leaf_hash(b"other"), proof)
        assert not is_consistent(old, old_root, new, new_root, proof[:-1])
    assert not is_consistent(old, old_root, new, new_root, [*proof, new_root])


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=80), st.integers(0, 90), st.integers(0, 90))
def test_hostile_proofs_are_refused_not_crashed_on(path: list[bytes], one: int, other: int) -> None:
    root = leaf_hash(b"root")
    assert root_from_inclusion(b"leaf", one, other, path) != root
    assert not is_consistent(one, root, other, leaf_hash(b"new"), path)


def test_a_path_of_another_length_leads_nowhere() -> None:
    """Whatever root is signed: its signer says of how many leaves it is, and a proof is about so many."""
    leaves, more = some_leaves(4), leaf_hash(b"more")
    three, four = by_definition(leaves[:3]), by_definition(leaves)
    path, proof = tree_of(leaves).inclusion(0, 4), tree_of(leaves).consistency(3, 4)
    assert root_from_inclusion(leaves[0], 0, 4, path) == four
    assert root_from_inclusion(leaves[0], 0, 8, path) is None
    assert root_from_inclusion(leaves[0], 0, 4, [*path, more]) is None
    assert is_consistent(3, three, 4, four, proof)
    assert not is_consistent(3, three, 8, four, proof)
    assert not is_consistent(3, node_hash(more, three), 4, node_hash(more, four), [*proof, more])


# Checkpoints and cosignatures: the bytes of C2SP, as an independent implementation writes and reads them.

WITNESS = SigningKey(b"w" * 32)
DATASET = SigningKey(b"d" * 32).dataset_id
TREE = TreeCheckpoint(DATASET, 2, 912, b"r" * 32)
NOW = instant.parse("2026-11-20T08:00:00.9Z")

# github.com/transparency-dev/formats v0.1.1 (Go) made this line with the same key; it read ours, too.
GO_TEXT = (
    b"did:odf:fed012bc2800b3316e009209ffd757dab19ccf0ae84bc7ae90654e1e81712d270f653/2\n"
    b"912\ncnJycnJycnJycnJycnJycnJycnJycnJycnJycnJycnI=\n"
)
GO_LINE = (
    "— did:key:z6MkswFb62xmEDrqnknM3TP112AiH6A5YETp7gc2Qz4Wqkar x1u3fgAAAABq//MJjT71OLznzWNGSyUKcEQqdF/AhvaR1yl4fCTts"
    "VF3KJIKYl+KM+p8ClRlDSdkGYsZTQcdiSC9oX7D8o5tfzMCAQ==\n"
)
GO_SECONDS = 0x6AFFF309
# The verifier key of golang.org/x/mod/sumdb/note's documentation.
PETER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"


def test_bytes_are_those_of_another_implementation() -> None:
    assert TREE.encode() == GO_TEXT
    assert checkpoint.decode(GO_TEXT) == TREE
    made = cosignature.cosign(WITNESS, TREE, Instant(GO_SECONDS * SECOND))
    assert made.line == GO_LINE
    assert cosignature.verify(TREE, GO_LINE) == made


def test_verifier_keys_are_written_as_others_write_them() -> None:
    name, key_id, told = PETER.split("+", 2)
    raw = checkpoint._base64(told, "key")
    assert checkpoint.key_id(name, checkpoint.NOTE_KEY, raw[1:]).hex() == key_id
    assert checkpoint.verifier_key(name, checkpoint.NOTE_KEY, raw[1:]) == PETER


def test_the_authority_is_a_log_of_its_own() -> None:
    tree = TreeCheckpoint(DATASET, None, 3, b"r" * 32)
    assert tree.origin == f"{DATASET}/authority"
    assert checkpoint.decode(tree.encode()) == tree


def test_a_cosignature_travels_as_json() -> None:
    made = cosignature.cosign(WITNESS, TREE, NOW)
    raw = made.encode()
    assert cosignature.decode(raw) == made
    assert set(json.loads(raw)) == {"type", "origin", "size", "rootHash", "line"}
    assert (made.witness, made.at) == (WITNESS.did, instant.parse("2026-11-20T08:00:00Z"))
    assert len(raw) < 520


BAD_TEXTS = {
    "no newline at the end": GO_TEXT[:-1],
    "a line more": GO_TEXT + b"more\n",
    "another origin": GO_TEXT.replace(b"did:odf", b"did:key"),
    "a size with zeros": GO_TEXT.replace(b"\n912\n", b"\n0912\n"),
    "a negative size": GO_TEXT.replace(b"\n912\n", b"\n-1\n"),
    "no leaves": GO_TEXT.replace(b"\n912\n", b"\n0\n"),
    "an epoch with zeros": GO_TEXT.replace(b"/2\n", b"/02\n"),
    "a short root": GO_TEXT.replace(b"cnJycnI=", b"cnI="),
    "two spellings of one root": GO_TEXT.replace(b"cnI=\n", b"cnJ=\n"),
    "not ASCII": GO_TEXT.replace(b"912", "９１２".encode()),
    "too long": GO_TEXT + b"x" * 512,
}


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_other_texts_are_refused(name: str) -> None:
    with pytest.raises(Invalid):
        checkpoint.decode(BAD_TEXTS[name])


BAD_LINES = {
    "a hyphen": GO_LINE.replace("—", "-"),
    "no newline": GO_LINE[:-1],
    "another name": GO_LINE.replace("Wqkar", "Wqkas"),
    "another time": GO_LINE.replace("AAAABq", "AAAABr"),
    "another signature": GO_LINE.replace("z0l", "z1l").replace("CAQ==", "CAg=="),
    "another kind of key": GO_LINE.replace("x1u3fg", "x1u3fw"),
    "nothing signed": GO_LINE[:62] + "x1u3fg==\n",
    "too long": "— " + "n" * 600 + " AAAA\n",
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_other_lines_are_refused(name: str) -> None:
    with pytest.raises(Invalid):
        cosignature.verify(TREE, BAD_LINES[name])


@pytest.mark.parametrize(
    "change",
    [
        {"size": 913},
        {"origin": f"{DATASET}/3"},
        {"type": "https://example.org/cosignature/v1"},
        {"more": 1},
        {"line": "x" * 1024},
    ],
)
def test_altered_json_is_refused(change: dict[str, canonical.Json]) -> None:
    body = {**json.loads(cosignature.cosign(WITNESS, TREE, NOW).encode()), **change}
    with pytest.raises(Invalid):
        cosignature.decode(canonical.encode(body))


def test_what_a_key_signs_for_one_purpose_is_read_for_no_other() -> None:
    """A key that is writer, validator and witness: what it signs for one is never read as another's."""
    first = [cosignature.message(TREE, 1), envelope.preauth(b"{}"), TREE.encode()]
    prefixes = [b"cosignature/v1\n", b"DSSEv1 ", b"did:odf:"]
    assert all(text.startswith(prefix) for text, prefix in zip(first, prefixes, strict=True))
    assert not any(one.startswith(other) for one in prefixes for other in prefixes if one != other)


@given(st.binary(max_size=400))
def test_no_bytes_crash_the_readers(raw: bytes) -> None:
    for read in (checkpoint.decode, cosignature.decode):
        with pytest.raises(Invalid):
            read(raw)
    with pytest.raises(Invalid):
        checkpoint.decode_line("— n " + raw.decode("latin-1"))


def branches() -> tuple[list[bytes], list[bytes]]:
    common = [bytes([number]) * 32 for number in range(5)]
    return [*common, b"a" * 32, b"b" * 32], [*common, b"c" * 32]


def cosigned(leaves: list[bytes], key: SigningKey = WITNESS, epoch: int = 2) -> bytes:
    tree = Frontier().extend(leaves)
    return cosignature.cosign(key, TreeCheckpoint(DATASET, epoch, tree.size, tree.root), NOW).encode()


def test_two_histories_cosigned_by_one_key_are_a_proof() -> None:
    ours, theirs = branches()
    of_ours, of_theirs = (lambda start, stop, all=each: all[start:stop] for each in (ours, theirs))
    made = proof.double_cosign(cosigned(ours), cosigned(theirs), of_ours, of_theirs)
    assert (made.kind, made.index, made.accused, made.epoch) == (proof.DOUBLE_COSIGN, 5, (WITNESS.did,), 2)
    assert proof.decode(made.raw) == made
    assert proof.double_cosign(cosigned(theirs), cosigned(ours), of_theirs, of_ours) == made
    for other in (cosigned(theirs, SigningKey(b"x" * 32)), cosigned(theirs, epoch=3)):
        with pytest.raises(Invalid, match="exclude nothing"):
            proof.double_cosign(cosigned(ours), other, of_ours, of_theirs)
    with pytest.raises(Invalid, match="no fork"):
        proof.double_cosign(cosigned(ours), cosigned(ours[:5]), of_ours, of_ours)
    body = json.loads(made.raw)
    body["index"] = 4
    with pytest.raises(Invalid, match="path"):
        proof.decode(canonical.encode(body))
