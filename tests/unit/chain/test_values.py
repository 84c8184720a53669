"""The smallest values: numbers, times, multibase texts, hashes, identities and names, to text and back."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multiformats import CID, multicodec, multihash, varint
from multiformats import multibase as theirs

from chain import instant, multibase
from chain import multibase as ours
from chain.digits import read_whole
from chain.errors import Invalid, NotFound
from chain.ids import ED25519_PUB, DatasetId, KeyDid, parse_local_alias, parse_name, parse_own_name
from chain.instant import Instant
from chain.multihash import ARROW0_SHA3_256, SHA2_256, SHA3_256, Multihash
from chain.wording import a, agree, plural
from p2p.identity import peer_of_did
from p2p.ipfs import record

# The smallest values: times, multibase texts, hashes, identities and names, to text and back.

TIMES = (
    st.integers(-62_135_596_800_000_000_000, 253_402_300_799_999_999_999)
    | st.integers(instant.parse("-262143-01-01T00:00:00Z"), instant.parse("+262142-12-31T23:59:59.999999999Z"))
).map(Instant)
KEYS = st.binary(min_size=32, max_size=32)


@given(TIMES)
def test_times_survive_text(time: Instant) -> None:
    assert instant.parse(instant.render(time)) == time
    assert instant.from_millis(instant.to_millis(time)) <= time < instant.from_millis(instant.to_millis(time) + 1)


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("2024-05-01T12:30:00Z", "2024-05-01T12:30:00Z"),
        ("2024-05-01T14:30:00.5+02:00", "2024-05-01T12:30:00.500Z"),
        ("2024-05-01t12:30:00.000001z", "2024-05-01T12:30:00.000001Z"),
        ("1969-12-31T23:59:59.999999999Z", "1969-12-31T23:59:59.999999999Z"),
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z"),
        ("2024-02-29T12:30:00.1234567899Z", "2024-02-29T12:30:00.123456789Z"),
        ("0000-02-29T00:00:00Z", "0000-02-29T00:00:00Z"),
        ("-0043-03-15T12:00:00Z", "-0043-03-15T12:00:00Z"),
        ("+10000-01-01T00:30:00+01:00", "9999-12-31T23:30:00Z"),
    ],
)
def test_times_are_rendered_in_utc(text: str, rendered: str) -> None:
    assert instant.render(instant.parse(text)) == rendered


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2024-05-01",
        "2024-02-30T00:00:00Z",
        "2024-05-01T24:00:00Z",
        "2024-05-01T12:30:00",
        "12024-05-01T00:00:00Z",
        "-0001-02-29T00:00:00Z",
        "٢024-05-01T00:00:00Z",
    ],
)
def test_texts_that_are_no_times(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        instant.parse(text)
    assert caught.value.rule == "rfc3339"


@given(st.binary(max_size=80))
def test_multibase_survives_text(raw: bytes) -> None:
    for encode in (multibase.encode_base16, multibase.encode_base58, multibase.encode_base64url):
        assert multibase.decode(encode(raw)) == raw


@given(st.text(max_size=300))
def test_any_text_is_decoded_or_invalid(text: str) -> None:
    for parse in (
        multibase.decode,
        Multihash.parse,
        DatasetId.parse,
        KeyDid.parse,
        parse_name,
        parse_local_alias,
        parse_own_name,
        instant.parse,
    ):
        try:
            parse(text)
        except Invalid as fault:
            told = fault.rule
        else:
            told = "a value"
        assert told


@given(KEYS)
def test_identities_survive_text(key: bytes) -> None:
    dataset, holder = DatasetId.from_public_key(key), KeyDid.from_public_key(key)
    assert DatasetId.parse(str(dataset)) == dataset
    assert KeyDid.parse(str(holder)) == holder == KeyDid.parse(str(dataset))
    assert dataset.public_key == holder.public_key == key


@given(st.binary(max_size=40))
def test_bytes_are_a_multihash_or_invalid(raw: bytes) -> None:
    value = Multihash.sha3_256(raw)
    assert Multihash.parse(str(value)) == Multihash.from_bytes(bytes(value)) == value
    with pytest.raises(Invalid, match="not a known multihash"):
        Multihash.from_bytes(raw)


def test_faults_say_where() -> None:
    assert str(Invalid("broken", place="a.yaml:3")) == "a.yaml:3: broken"
    assert NotFound("gone").exit_code == Invalid.exit_code == 5


def test_a_name_that_is_too_long_is_told_its_length() -> None:
    assert parse_name("a" * 253) == "a" * 253
    with pytest.raises(Invalid) as caught:
        parse_name("a" * 254)
    assert caught.value.hint == "at most 253 characters; this one has 254"


# Whole numbers in texts of others.


@given(st.integers(0, 2**63 - 1), st.integers(0, 6000))
def test_what_is_written_is_read_with_any_number_of_zeros(number: int, zeros: int) -> None:
    assert read_whole("0" * zeros + str(number)) == number


@pytest.mark.parametrize("text", ["", "x", "-1", "+1", " 1", "1_0", "٣", str(2**63), "9" * 5000])
def test_another_text_is_no_number(text: str) -> None:
    """One of 5,000 digits too, which ``int`` refuses by ValueError."""
    assert read_whole(text) is None


# Our fast path for hashes, bases and names says what the library of multiformats says, and takes in no more.

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
    assert text == theirs.encode(raw, base)
    assert ours.decode(text) == theirs.decode(text) == raw


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
    assert theirs.decode(text) == raw


FINAL = ("base16", "base16upper", "base32", "base32upper", "base58btc", "base64", "base64url", "base64urlpad")


@pytest.mark.parametrize("base", FINAL)
@given(raw=raws, key=keys)
def test_every_final_base_is_read_and_one_is_written(base: str, raw: bytes, key: bytes) -> None:
    """The specification of ODF asks it of every implementation."""
    assert theirs.get(base).status == "final"
    assert ours.decode(theirs.encode(raw, base)) == raw
    dataset, block = DatasetId.from_public_key(key), Multihash.from_digest(SHA3_256, key)
    assert DatasetId.parse("did:odf:" + theirs.encode(bytes(dataset), base)) == dataset
    assert str(DatasetId.parse("did:odf:" + theirs.encode(bytes(dataset), base))) == str(dataset)
    assert str(Multihash.parse(theirs.encode(bytes(block), base))) == str(block)


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
    assert Multihash.parse(theirs.encode(bytes(made), "base58btc")) == made


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
    assert str(KeyDid.from_public_key(key)) == "did:key:" + theirs.encode(ED25519_PUB + key, "base58btc")
    assert str(DatasetId.from_public_key(key)) == "did:odf:" + theirs.encode(ED25519_PUB + key, "base16")


@given(keys)
def test_peer_ids_and_names_are_one_hash(key: bytes) -> None:
    """A peer id is the identity multihash of a key, and an IPNS name the CID over it."""
    name = CID.decode(record.name_of(DatasetId.from_public_key(key)))
    peer = theirs.decode("z" + peer_of_did(KeyDid.from_public_key(key)))
    assert (name.base.name, name.version, name.codec.name, name.hashfun.name) == ("base36", 1, "libp2p-key", "identity")
    assert bytes(name.digest) == peer


# Counted nouns, and the words that agree with them.


@pytest.mark.parametrize(("number", "said"), [(0, "0 blocks"), (1, "1 block"), (2, "2 blocks"), (1500, "1,500 blocks")])
def test_a_counted_noun(number: int, said: str) -> None:
    assert plural(number, "block") == said


def test_a_verb_agrees_with_what_does_it() -> None:
    assert [agree(number, "derives", "derive") for number in (0, 1, 2)] == ["derive", "derives", "derive"]


def test_a_noun_has_its_article() -> None:
    assert list(map(a, ("Int64", "array", "UInt8", "Bool"))) == ["an Int64", "an array", "a UInt8", "a Bool"]
