"""Statements, envelopes and keys: bytes that others can read, and nothing that two readers could read differently."""

from __future__ import annotations

import base64
import json

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Invalid
from chain.multihash import Multihash
from chain.statements import canonical, envelope, keys, statement
from chain.statements.keys import SigningKey
from chain.statements.statement import Actual, Attestation, EngineUsed, HeadStatement, Interval, Mismatch, Span

ALICE = SigningKey(b"a" * 32)
BOB = SigningKey(b"b" * 32)
NOW = instant.parse("2026-11-20T08:00:00.123Z")


def head(size: int = 8) -> HeadStatement:
    return HeadStatement(
        dataset=ALICE.dataset_id,
        epoch=0,
        size=size,
        root_hash=b"r" * 32,
        authority=0,
        issued_at=statement.when(NOW),
        expires_at="2026-11-27T08:00:00Z",
        head=Multihash.sha3_256(b"block"),
    )


def attestation() -> Attestation:
    return Attestation(
        validator=ALICE.did,
        dataset=ALICE.dataset_id,
        epoch=0,
        size=8,
        root_hash=b"r" * 32,
        serial=4,
        previous=Multihash.sha3_256(b"before"),
        determinism="strict",
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
