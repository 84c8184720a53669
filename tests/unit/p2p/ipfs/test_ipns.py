"""Names and records of IPNS: made, read, and never believed when anything in them was changed."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multiformats import CID

from chain import instant
from chain.codec import protobuf
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.statements.keys import SigningKey
from p2p.ipfs import record
from p2p.ipfs.record import Pointer

KEY = SigningKey(b"\x33" * 32)
PLACE = "/ipfs/bafkreiem4twkqzsq2aj4shbycd4yvoj2cx72vezicletlhi7dijjciqpui"
POINTER = Pointer(value=PLACE, sequence=3, expires=instant.parse("2030-01-02T03:04:05Z"), ttl=3_600_000_000_000)
keys = st.binary(min_size=32, max_size=32)


@pytest.mark.slow
@given(keys)
def test_a_name_is_its_dataset(key: bytes) -> None:
    dataset = DatasetId.from_public_key(key)
    name = record.name_of(dataset)
    assert name.startswith("k51qzi5uqu5")
    assert len(name) == 62
    for spelling in (name, f"ipns://{name}", f"/ipns/{name}"):
        assert record.dataset_of(spelling) == dataset


@pytest.mark.slow
@given(keys, st.data())
def test_of_all_spellings_one_is_the_name(key: bytes, data: st.DataObject) -> None:
    """Another base, capitals, another codec or another hash name the same key at best, and are not its name."""
    name = record.name_of(DatasetId.from_public_key(key))
    cid = CID.decode(name)
    others = [str(cid.set(base=base)) for base in ("base32", "base58btc", "base16")]
    others += [str(cid.set(codec="raw")), name.upper(), "K" + name[1:], name + "0"]
    at = data.draw(st.integers(1, len(name) - 1))
    others.append(name[:at] + data.draw(st.sampled_from("!._ éA")) + name[at + 1 :])
    for other in others:
        with pytest.raises(Invalid, match="not the IPNS name"):
            record.dataset_of(other)


@pytest.mark.slow
@given(st.text(max_size=100))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    with contextlib.suppress(Invalid):
        assert record.name_of(record.dataset_of(text)) in text


@pytest.mark.parametrize("name", ["", "k", "k51", "k0" + "1" * 60, "K51QZI", "z6Mk", "k" + "z" * 62, "k51qzi5uqu5dé"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(Invalid):
        record.dataset_of(name)


@given(
    st.builds(
        Pointer,
        value=st.text(max_size=200),
        sequence=st.integers(0, 2**64 - 1),
        expires=st.integers(0, 2**62).map(Instant),
        ttl=st.integers(0, 2**63 - 1),
    )
)
def test_round_trip(pointer: Pointer) -> None:
    assert record.unseal(record.seal(pointer, KEY), KEY.dataset_id) == pointer


@given(st.data())
def test_a_changed_bit_says_nothing_else(data: st.DataObject) -> None:
    """It is refused, or it changed what nobody believes: the first signature."""
    raw = bytearray(record.seal(POINTER, KEY))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        read = record.unseal(bytes(raw), KEY.dataset_id)
    except Invalid:
        return
    assert read == POINTER


@given(st.binary(max_size=400))
def test_garbage(raw: bytes) -> None:
    for body in (raw, record.seal(POINTER, KEY)[: len(raw)] + raw):
        with pytest.raises(Invalid):
            record.unseal(body, KEY.dataset_id)


def test_of_another_key_and_too_large() -> None:
    raw = record.seal(POINTER, KEY)
    with pytest.raises(Invalid, match="not that of the dataset's key"):
        record.unseal(raw, SigningKey(bytes(32)).dataset_id)
    with pytest.raises(Invalid, match="bytes"):
        record.unseal(raw + bytes(record.MAX_RECORD), KEY.dataset_id)


def test_what_the_fields_say_must_be_what_is_signed() -> None:
    raw = record.seal(POINTER, KEY)
    other: Any = protobuf.field(5, 4)
    with pytest.raises(Invalid, match="do not say the same"):
        record.unseal(raw + other, KEY.dataset_id)
