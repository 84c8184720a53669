"""The codec of Protocol Buffers, against the runtime of its authors and any bytes."""

from __future__ import annotations

import pytest
from google.protobuf import unknown_fields
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from chain.codec.protobuf import Field, bytes_of, delimited, field, fixed64_field, number_of, read_fields
from chain.errors import Invalid

RULE = "some-message"
numbers = st.integers(0, 2**64 - 1)
fields = st.lists(st.tuples(st.integers(1, 2**29 - 1), st.one_of(numbers, st.binary(max_size=300))), max_size=9)


def read_by_google(raw: bytes) -> list[tuple[int, Field]]:
    message = Empty()
    message.ParseFromString(raw)
    return [(one.field_number, one.data) for one in unknown_fields.UnknownFieldSet(message)]


@given(fields)
def test_prop_fields_are_read_as_written_here_and_by_google(content: list[tuple[int, Field]]) -> None:
    raw = b"".join(field(number, value) for number, value in content)
    assert list(read_fields(raw, RULE)) == content == read_by_google(raw)


@given(st.integers(1, 2**29 - 1), numbers)
def test_prop_fixed_numbers_are_read_as_written(number: int, value: int) -> None:
    raw = fixed64_field(number, value)
    assert list(read_fields(raw, RULE)) == [(number, value)] == read_by_google(raw)


@given(st.binary(max_size=60))
def test_prop_any_bytes_are_fields_or_invalid(raw: bytes) -> None:
    try:
        content = list(read_fields(raw, RULE))
    except Invalid:
        return
    try:
        assert content == read_by_google(raw)
    except DecodeError:  # it also refuses numbers of fields that no schema may use
        assert any(not 0 < number < 1 << 29 for number, _ in content)


@pytest.mark.parametrize(
    "raw",
    [b"\x0a", b"\x0a\x05abc", b"\x0b", b"\x0f", b"\x08", b"\x08" + b"\x80" * 10, b"\x08" + b"\xff" * 9 + b"\x02",
     b"\x21\x00", b"\x2d" + bytes(3)],
    ids=["no-length", "cut", "group", "no-kind", "no-number", "no-end", "over-64-bits", "fixed64-cut", "fixed32-cut"],
)  # fmt: skip
def test_broken_messages_are_refused(raw: bytes) -> None:
    with pytest.raises(Invalid, match="not a protobuf message") as refused:
        list(read_fields(raw, RULE))
    assert refused.value.rule == RULE


def test_a_field_of_another_type_is_refused() -> None:
    assert (number_of(5, RULE), bytes_of(b"five", RULE)) == (5, b"five")
    with pytest.raises(Invalid):
        number_of(b"five", RULE)
    with pytest.raises(Invalid):
        bytes_of(5, RULE)


def test_a_delimited_message_begins_with_its_length() -> None:
    assert delimited(bytes(300)) == b"\xac\x02" + bytes(300)
