"""The smallest values: times, multibase texts, hashes, identities and names, to text and back."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from chain import instant, multibase
from chain.errors import Invalid, NotFound
from chain.ids import DatasetId, KeyDid, parse_local_alias, parse_name, parse_own_name
from chain.instant import Instant
from chain.multihash import Multihash

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
