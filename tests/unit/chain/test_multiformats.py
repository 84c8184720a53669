"""Our fast path for hashes, bases and names says what the library of multiformats says, and takes in no more."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multiformats import CID, multibase, multicodec, multihash, varint

from chain import multibase as ours
from chain.errors import Invalid
from chain.ids import ED25519_PUB, DatasetId, KeyDid
from chain.multihash import ARROW0_SHA3_256, SHA2_256, SHA3_256, Multihash
from p2p.identity import peer_of_did
from p2p.ipfs import record

NAMES = {SHA2_256: "sha2-256", SHA3_256: "sha3-256"}
BASES = {"base16": ours.encode_base16, "base58btc": ours.encode_base58, "base64url": ours.encode_base64url}
digests = st.binary(min_size=32, max_size=32)
keys = st.binary(min_size=32, max_size=32)
raws = st.binary(max_size=64) | st.binary(max_size=8).map(lambda tail: bytes(8) + tail)


@given(st.integers(0, 2**63 - 1))
def test_varints(value: int) -> None:
    assert ours.varint(value) == varint.encode(value)


@pytest.mark.parametrize("base", BASES)
@given(raw=raws)
def test_bases_are_written_and_read_alike(base: str, raw: bytes) -> None:
    text = BASES[base](raw)
    assert text == multibase.encode(raw, base)
    assert ours.decode(text) == multibase.decode(text) == raw


@given(
    st.sampled_from("fFzubBmU").flatmap(
        lambda base: st.text(string.ascii_letters + string.digits + "-_=+/ ").map(base.__add__)
    )
)
def test_what_we_read_the_library_reads_alike(text: str) -> None:
    try:
        raw = ours.decode(text)
    except Invalid:
        return
    assert multibase.decode(text) == raw


FINAL = ("base16", "base16upper", "base32", "base32upper", "base58btc", "base64", "base64url", "base64urlpad")


@pytest.mark.parametrize("base", FINAL)
@given(raw=raws, key=keys)
def test_every_final_base_is_read_and_one_is_written(base: str, raw: bytes, key: bytes) -> None:
    """The specification of ODF asks it of every implementation."""
    assert multibase.get(base).status == "final"
    assert ours.decode(multibase.encode(raw, base)) == raw
    dataset, block = DatasetId.from_public_key(key), Multihash.from_digest(SHA3_256, key)
    assert DatasetId.parse("did:odf:" + multibase.encode(bytes(dataset), base)) == dataset
    assert str(DatasetId.parse("did:odf:" + multibase.encode(bytes(dataset), base))) == str(dataset)
    assert str(Multihash.parse(multibase.encode(bytes(block), base))) == str(block)


@pytest.mark.parametrize(
    "text", ["bMZXW6", "Bmzxw6", "bmzxw6===", "bmzxw7", "mZg==", "mZh", "m-_8", "UZg", "U+/8=", "mZ g"]
)
def test_other_spellings_of_these_bases_are_refused(text: str) -> None:
    with pytest.raises(Invalid, match="not multibase"):
        ours.decode(text)


@pytest.mark.parametrize("prefix", sorted({*string.printable} - set("fFzubBmU")))
def test_bases_that_are_not_final_are_refused_by_their_letter(prefix: str) -> None:
    with pytest.raises(Invalid, match="unknown multibase prefix"):
        ours.decode(prefix + "aa")


@pytest.mark.parametrize("code", NAMES)
@given(digest=digests)
def test_hashes(code: int, digest: bytes) -> None:
    assert multicodec.get(NAMES[code]).code == code
    made = Multihash.from_digest(code, digest)
    assert made == multihash.wrap(digest, NAMES[code])
    assert (made.algorithm, made.digest) == (NAMES[code], multihash.unwrap(bytes(made)))
    assert Multihash.parse(multibase.encode(bytes(made), "base58btc")) == made


@given(st.sampled_from(sorted(NAMES)), st.binary(max_size=40))
def test_a_hash_that_we_take_is_one(code: int, rest: bytes) -> None:
    raw = varint.encode(code) + rest
    try:
        taken = Multihash.from_bytes(raw)
    except Invalid:
        assert rest[:1] != b"\x20" or len(rest) != 33
        return
    assert multihash.unwrap(bytes(taken), NAMES[code]) == rest[1:]


def test_the_hash_of_rows_has_a_code_for_private_use() -> None:
    assert not multicodec.exists(code=ARROW0_SHA3_256)
    assert 0x300000 <= ARROW0_SHA3_256 <= 0x3FFFFF


@given(keys)
def test_identities(key: bytes) -> None:
    assert varint.encode(multicodec.get("ed25519-pub").code) == ED25519_PUB
    assert str(KeyDid.from_public_key(key)) == "did:key:" + multibase.encode(ED25519_PUB + key, "base58btc")
    assert str(DatasetId.from_public_key(key)) == "did:odf:" + multibase.encode(ED25519_PUB + key, "base16")


@given(keys)
def test_peer_ids_and_names_are_one_hash(key: bytes) -> None:
    """A peer id is the identity multihash of a key, and an IPNS name the CID over it."""
    name = CID.decode(record.name_of(DatasetId.from_public_key(key)))
    peer = multibase.decode("z" + peer_of_did(KeyDid.from_public_key(key)))
    assert (name.base.name, name.version, name.codec.name, name.hashfun.name) == ("base36", 1, "libp2p-key", "identity")
    assert bytes(name.digest) == peer
