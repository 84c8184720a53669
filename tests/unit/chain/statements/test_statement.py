"""Statements, envelopes and keys: bytes that others can read, and nothing that two readers could read differently."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Invalid
from chain.instant import SECOND, Instant
from chain.multihash import Multihash
from chain.statements import canonical, checkpoint, cosignature, envelope, keys, proof, statement
from chain.statements.card import Card, CardColumn, ChainFacts, PublisherClaims
from chain.statements.checkpoint import TreeCheckpoint
from chain.statements.keys import SigningKey
from chain.statements.node_card import NodeCard, NodeClaims
from chain.statements.statement import (
    Actual,
    AnyPredicate,
    Attestation,
    Authority,
    EngineUsed,
    Epoch,
    HeadStatement,
    Interval,
    Mismatch,
    Observation,
    PolicyStatement,
    Response,
    Roots,
    RuleGroup,
    Rules,
    Span,
    TreeHead,
    Writer,
)
from chain.statements.tree import EMPTY_ROOT, Frontier, Tree, is_consistent, leaf_hash, node_hash, root_from_inclusion
from worlds.statements import attestation_statement, head_statement

ALICE = SigningKey(b"a" * 32)
BOB = SigningKey(b"b" * 32)
NOW = instant.parse("2026-11-20T08:00:00.123Z")


def head(size: int = 8) -> HeadStatement:
    return head_statement(ALICE.dataset_id, size, at=NOW)


def attestation() -> Attestation:
    return attestation_statement(
        ALICE.did,
        ALICE.dataset_id,
        8,
        serial=4,
        previous=Multihash.sha3_256(b"before"),
        finished_at="2026-11-20T09:31:02Z",
        engines=(EngineUsed(name="spark", digest="sha256:00", pinned=True, sandbox="host", platform="linux/amd64"),),
        spans=(Span(first=0, last=7, verdict="mismatch", state="genesis", engine=0),),
        mismatch=(
            Mismatch(sequence_number=7, runs=3, actual=Actual(offset_interval=Interval(start=1, end=2), records=2)),
        ),
        head=Multihash.sha3_256(b"block"),
    )


@pytest.mark.parametrize("predicate", [head(), attestation()])
def test_statements_come_back(predicate: statement.Predicate) -> None:
    payload = statement.encode(predicate)
    assert statement.decode(payload) == predicate
    assert json.loads(payload)["subject"][0]["name"] == str(ALICE.dataset_id)
    sealed = envelope.seal(payload, ALICE)
    assert len(sealed) <= predicate.MAX_ENVELOPE
    opened = envelope.unseal(sealed, statement.MAX_ANY)
    assert opened.payload == payload
    assert opened.signers == (ALICE.did,)
    assert opened.envelope == sealed


def test_head_bytes_are_pinned() -> None:
    assert statement.encode(head()).decode() == (
        '{"_type":"https://in-toto.io/Statement/v1","predicate":{"authority":0,'
        f'"dataset":"{ALICE.dataset_id}","epoch":0,"expiresAt":"2026-11-27T08:00:00Z",'
        '"issuedAt":"2026-11-20T08:00:00Z","rootHash":"cnJycnJycnJycnJycnJycnJycnJycnJycnJycnJycnI=","size":8},'
        '"predicateType":"https://w3id.org/odfd/trust/head/v1","subject":[{"digest":{"sha3_256":'
        f'"{Multihash.sha3_256(b"block").digest.hex()}"}},"name":"{ALICE.dataset_id}"}}]}}'
    )


def test_preauth_is_that_of_the_dsse_specification() -> None:
    assert envelope.preauth(b"hello world", "http://example.com/HelloWorld") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_only_verified_signatures_are_passed_on() -> None:
    payload = statement.encode(head())
    forged = json.loads(envelope.seal(payload, ALICE, BOB))
    forged["signatures"][1]["sig"] = base64.b64encode(b"x" * 64).decode()
    opened = envelope.unseal(json.dumps(forged).encode(), 1 << 16)
    assert opened.signers == (ALICE.did,)
    assert len(json.loads(opened.envelope)["signatures"]) == 1


def test_an_envelope_larger_than_its_limit_is_not_read() -> None:
    """A valid one too: the limit of a kind is what a store reserves for it."""
    sealed = envelope.seal(statement.encode(head()), ALICE)
    assert envelope.unseal(sealed, len(sealed)).envelope == sealed
    with pytest.raises(Invalid) as caught:
        envelope.unseal(sealed, len(sealed) - 1)
    assert caught.value.rule == "envelope-size"


def test_a_did_odf_names_the_same_key() -> None:
    payload = statement.encode(head())
    opened = envelope.unseal(envelope.seal(payload, ALICE, as_dataset=True), 1 << 16)
    assert opened.signers == (ALICE.did,) == (envelope.dataset_key(ALICE.dataset_id),)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"a": 1}',
        b'{"b":1,"a":2}',
        b'{"a":1.0}',
        b'{"a":null}',
        b'{"a":-1}',
        b'{"a":9007199254740992}',
        b'{"a":1e3}',
        b"[[[[[[[[[]]]]]]]]]",
        b'{"a":1,"a":1}',
        b'"\\ud800"',
        b'{"\\ud800":1}',
        b"[NaN]",
        b"",
        b"[" * 100_000,
    ],
)
def test_noncanonical_json_is_refused(payload: bytes) -> None:
    with pytest.raises(Invalid):
        canonical.decode(payload)


TEXTS = st.text(st.characters(exclude_categories=("Cs",)))
LEAVES = TEXTS | st.integers(0, canonical.MAX_INTEGER) | st.booleans()
KEYS = TEXTS | st.text("ab\x7f\ue000\U0001f600")


def within(inner: st.SearchStrategy[canonical.Json]) -> st.SearchStrategy[canonical.Json]:
    return inner | st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4)


@pytest.mark.slow
@given(within(within(within(LEAVES))))
@example({"\ue000": 1, "\U0001f600": 2})
@example({"é": {"b": '\x00\x1f\x7f\u2028"\\/', "a": "\b\t\n\f\r"}, "a": []})
def test_canonical_bytes_are_those_of_the_reference(value: canonical.Json) -> None:
    written = canonical.encode(value)
    assert written == rfc8785.dumps(value)
    assert canonical.decode(written) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_invalid(raw: bytes) -> None:
    for read in (statement.decode, canonical.decode, lambda data: envelope.unseal(data, 4096)):
        try:
            read(raw)
        except Invalid:
            continue


@given(st.data())
def test_a_flipped_bit_of_an_envelope_is_never_another_statement(data: st.DataObject) -> None:
    sealed = bytearray(envelope.seal(statement.encode(head()), ALICE))
    place = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[place // 8] ^= 1 << place % 8
    try:
        opened = envelope.unseal(bytes(sealed), 4096)
    except Invalid:
        return
    assert statement.decode(opened.payload) == head()
    assert opened.signers == (ALICE.did,)


def test_small_order_keys_refused() -> None:
    for y in sorted(keys._SMALL_ORDER_Y):
        for sign in (0, 1 << 255):
            key = (y | sign).to_bytes(32, "little")
            with pytest.raises(Invalid):
                keys.check_public_key(key)
            assert not keys.verify(key, b"anything", bytes(64))
    with pytest.raises(Invalid):
        keys.check_public_key(keys.FIELD.to_bytes(32, "little"))


def test_malleable_signature_refused() -> None:
    signature = ALICE.sign(b"message")
    scalar = int.from_bytes(signature[32:], "little") + keys.ORDER
    assert keys.verify(ALICE.public, b"message", signature)
    assert not keys.verify(ALICE.public, b"message", signature[:32] + scalar.to_bytes(32, "little"))


SECP256K1 = "did:key:zQ3shokFTS3brHcDQrn82RUDfCZESWL1ZdCEJwekUDPQiYBme"
"""A key of another algorithm, as the did:key method writes it."""


@pytest.mark.parametrize(
    ("part", "wrong", "rule"),
    [
        ("payload", "not base64!", "envelope"),
        ("payload", 7, "envelope"),
        ("payload", base64.b64encode(b"another").decode(), "envelope-signature"),
        ("payloadType", "application/json", "envelope-type"),
        ("payloadType", None, "envelope"),
        ("signatures", [], "envelope-signature"),
        ("signatures", {}, "envelope"),
        ("signatures", [{"sig": "AAAA"}] * (envelope.MAX_SIGNATURES + 1), "envelope-signatures"),
        ("keyid", str(BOB.did), "envelope-signature"),
        ("keyid", "", "did"),
        ("keyid", SECP256K1, "did"),
        ("keyid", "did:key:z6Mk", "did"),
        ("sig", "", "envelope-signature"),
        ("sig", "%%%", "envelope"),
        ("sig", base64.b64encode(bytes(63)).decode(), "envelope-signature"),
        ("sig", base64.b64encode(bytes(64)).decode(), "envelope-signature"),
    ],
)
def test_each_part_of_an_envelope_wrong_in_turn(part: str, wrong: object, rule: str) -> None:
    """One clear reason each; there is no field that names an algorithm, so that none can be chosen."""
    body = json.loads(envelope.seal(statement.encode(head()), ALICE))
    (body["signatures"][0] if part in ("keyid", "sig") else body)[part] = wrong
    with pytest.raises(Invalid) as caught:
        envelope.unseal(json.dumps(body).encode(), 1 << 16)
    assert caught.value.rule == rule


@pytest.mark.parametrize("keyid", ["", SECP256K1, "sha256:8f9b51ce", "did:web:example.org"])
def test_signatures_of_other_kinds_are_left_out(keyid: str) -> None:
    """``keyid`` is a hint: what others add beside ours neither counts nor hinders, and is not passed on."""
    sealed = envelope.seal(statement.encode(head()), ALICE)
    body = json.loads(sealed)
    body["signatures"].insert(0, {"keyid": keyid, "sig": base64.b64encode(bytes(70)).decode()})
    opened = envelope.unseal(json.dumps(body).encode(), 1 << 16)
    assert (opened.signers, opened.envelope) == ((ALICE.did,), sealed)


@pytest.mark.parametrize("digest", ["AB" * 32, "ab" * 31, "ab" * 33, " ab" * 21 + "a", "0x" + "ab" * 31, "", "zz" * 32])
def test_a_digest_is_written_in_one_way(digest: str) -> None:
    body = json.loads(statement.encode(head()))
    body["subject"][0]["digest"]["sha3_256"] = digest
    with pytest.raises(Invalid) as caught:
        statement.decode(json.dumps(body, separators=(",", ":"), sort_keys=True).encode())
    assert caught.value.rule == "statement"


FRAME = {
    "_type": "https://in-toto.io/Statement/v0.1",
    "predicateType": "https://w3id.org/odfd/trust/head/v2",
    "subject": [],
    "predicate": None,
}


@pytest.mark.parametrize("part", FRAME)
def test_each_part_of_a_statement_wrong_in_turn(part: str) -> None:
    body = json.loads(statement.encode(head()))
    for changed in ({**body, part: FRAME[part]}, {name: value for name, value in body.items() if name != part}):
        with pytest.raises(Invalid):
            statement.decode(json.dumps(changed, separators=(",", ":"), sort_keys=True).encode())


# Every kind of statement comes back as it was said, and whatever stands in its place is refused in one way.


SIGNERS = [SigningKey(bytes([number]) * 32) for number in range(1, 4)]
DATASET = SIGNERS[0].dataset_id
TIME = "2026-11-20T08:00:00Z"
HEAD = Multihash.sha3_256(b"block")
TREE = TreeHead(size=4, root_hash=b"r" * 32)
RULES = Rules(use="data & fresh", groups=(RuleGroup(name="a", keys=(SIGNERS[1].did,)),), f=0, max_stale="7d")
OPERATOR = NodeClaims(name="Graz", contact="mail@example.org", about="Air over Graz")
SPOKEN: list[AnyPredicate] = [
    head_statement(DATASET, 4, head=HEAD),
    head_statement(DATASET, 4, node=SIGNERS[1].did, head=HEAD),
    attestation_statement(
        SIGNERS[1].did,
        DATASET,
        4,
        spans=(Span(first=0, last=3, verdict="reproduced", state="genesis"),),
        head=HEAD,
        engines=(),
    ),
    Authority(
        dataset=DATASET,
        version=1,
        issued_at=TIME,
        roots=Roots(threshold=1, keys=(SIGNERS[0].did,)),
        writers=(Writer(key=SIGNERS[1].did, expires_at="2027-01-01T00:00:00Z"),),
        epochs=(Epoch(number=1, reason="recovery", base=TREE, last=TREE),),
        head=HEAD,
    ),
    Observation(
        observer=SIGNERS[1].did,
        dataset=DATASET,
        epoch=0,
        sequence_number=3,
        result="same-rows",
        response=Response(sha256="00" * 32, size=7, etag='"v"', last_modified=TIME),
        at=TIME,
        head=HEAD,
    ),
    Card(
        dataset=DATASET,
        author=SIGNERS[0].did,
        authority=0,
        epoch=0,
        size=4,
        issued_at=TIME,
        expires_at="2027-01-01T00:00:00Z",
        chain=ChainFacts(
            kind="root",
            records=7,
            created_at=TIME,
            updated_at=TIME,
            watermark=TIME,
            description="Air over Graz",
            keywords=("air",),
            license="CC-BY-4.0",
            columns=(CardColumn(name="city", type="String"),),
            inputs=(DATASET,),
        ),
        claims=PublisherClaims(name="air", publisher="Graz"),
        head=HEAD,
    ),
    PolicyStatement(key=SIGNERS[0].did, network="n", version=1, issued_at=TIME, policy=RULES, head=RULES.digest),
    NodeCard(
        node=SIGNERS[1].did, issued_at=TIME, expires_at="2027-01-01T00:00:00Z", claims=OPERATOR, head=OPERATOR.digest
    ),
]
JSON = st.recursive(
    st.booleans() | st.integers(-10, 1 << 60) | st.text(max_size=12) | st.sampled_from([TIME, str(HEAD), str(DATASET)]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


def kinds() -> Any:
    return pytest.mark.parametrize("said", SPOKEN, ids=lambda said: type(said).__name__)


@kinds()
def test_what_is_said_is_heard(said: AnyPredicate) -> None:
    assert statement.decode_any(statement.encode(said)) == said
    assert set(statement.KINDS) == {each.KIND for each in SPOKEN}


@pytest.mark.slow
@kinds()
@given(data=st.data())
def test_anything_in_place_of_a_part_is_refused_or_read(said: AnyPredicate, data: st.DataObject) -> None:
    """A mistake is Invalid and nothing else, wherever it stands."""
    frame: Any = canonical.decode(statement.encode(said))
    place = frame
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else list(range(len(place)))))
        deeper = isinstance(place[key], dict | list) and len(place[key]) > 0
        if not deeper or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(JSON)
    try:
        payload = canonical.encode(frame)
    except Invalid:
        return
    try:
        found = statement.decode_any(payload)
    except Invalid:
        return
    assert statement.decode_any(statement.encode(found)) == found


WHEN = re.compile(r"[0-9-]{10}T[0-9:]{8}Z")


@kinds()
@pytest.mark.parametrize("time", ["2026-13-01T00:00:00Z", "2026-02-30T00:00:00Z", "2026-11-20T25:00:00Z"])
def test_a_time_that_no_calendar_has_is_refused(said: AnyPredicate, time: str) -> None:
    names = [name for name in said.__struct_fields__ if WHEN.fullmatch(str(getattr(said, name)))]
    assert names
    for name in names:
        with pytest.raises(Invalid):
            statement.decode_any(statement.encode(msgspec.structs.replace(said, **{name: time})))


# Trees of blocks, proofs of them, and who cosigns them.


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
LOGGED = SigningKey(b"d" * 32).dataset_id
CHECKPOINT = TreeCheckpoint(LOGGED, 2, 912, b"r" * 32)
STAMPED = instant.parse("2026-11-20T08:00:00.9Z")

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
    assert CHECKPOINT.encode() == GO_TEXT
    assert checkpoint.decode(GO_TEXT) == CHECKPOINT
    made = cosignature.cosign(WITNESS, CHECKPOINT, Instant(GO_SECONDS * SECOND))
    assert made.line == GO_LINE
    assert cosignature.verify(CHECKPOINT, GO_LINE) == made


def test_verifier_keys_are_written_as_others_write_them() -> None:
    name, key_id, told = PETER.split("+", 2)
    raw = checkpoint._base64(told, "key")
    assert checkpoint.key_id(name, checkpoint.NOTE_KEY, raw[1:]).hex() == key_id
    assert checkpoint.verifier_key(name, checkpoint.NOTE_KEY, raw[1:]) == PETER


def test_the_authority_is_a_log_of_its_own() -> None:
    tree = TreeCheckpoint(LOGGED, None, 3, b"r" * 32)
    assert tree.origin == f"{LOGGED}/authority"
    assert checkpoint.decode(tree.encode()) == tree


def test_a_cosignature_travels_as_json() -> None:
    made = cosignature.cosign(WITNESS, CHECKPOINT, STAMPED)
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
        cosignature.verify(CHECKPOINT, BAD_LINES[name])


@pytest.mark.parametrize(
    "change",
    [
        {"size": 913},
        {"origin": f"{LOGGED}/3"},
        {"type": "https://example.org/cosignature/v1"},
        {"more": 1},
        {"line": "x" * 1024},
    ],
)
def test_altered_json_is_refused(change: dict[str, canonical.Json]) -> None:
    body = {**json.loads(cosignature.cosign(WITNESS, CHECKPOINT, STAMPED).encode()), **change}
    with pytest.raises(Invalid):
        cosignature.decode(canonical.encode(body))


def test_what_a_key_signs_for_one_purpose_is_read_for_no_other() -> None:
    """A key that is writer, validator and witness: what it signs for one is never read as another's."""
    first = [cosignature.message(CHECKPOINT, 1), envelope.preauth(b"{}"), CHECKPOINT.encode()]
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
    return cosignature.cosign(key, TreeCheckpoint(LOGGED, epoch, tree.size, tree.root), STAMPED).encode()


def test_two_histories_cosigned_by_one_key_are_a_proof() -> None:
    """Attack T-HEAD-06: a witness that cosigned two histories.

    Defence: the two cosignatures are a proof.
    """
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
