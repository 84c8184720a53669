"""The twelve bytes of a header, against the specification's examples and against whatever else may come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.errors import Misbehaviour
from p2p.yamux import frames


@pytest.mark.parametrize(
    ("kind", "flags", "stream", "length", "raw"),
    [
        (frames.WINDOW_UPDATE, frames.SYN, 1, 0, "000100010000000100000000"),
        (frames.WINDOW_UPDATE, frames.ACK, 1, 262144, "000100020000000100040000"),
        (frames.DATA, 0, 0x0A0B0C0D, 5, "000000000a0b0c0d00000005"),
        (frames.DATA, frames.FIN, 2, 0, "000000040000000200000000"),
        (frames.PING, frames.SYN, 0, 0xDEADBEEF, "0002000100000000deadbeef"),
        (frames.GO_AWAY, 0, 0, 1, "000300000000000000000001"),
    ],
)
def test_header_has_the_bytes_of_the_specification(kind: int, flags: int, stream: int, length: int, raw: str) -> None:
    assert frames.pack(kind, flags, stream, length).hex() == raw
    assert frames.parse(bytes.fromhex(raw)) == frames.YamuxHeader(kind, flags, stream, length)


@given(st.binary(min_size=12, max_size=12))
def test_any_twelve_bytes_are_a_header_or_a_violation(raw: bytes) -> None:
    version, kind, flags, stream, length = frames.HEADER.unpack(raw)
    lawful = version == 0 and kind <= 3 and flags <= 15 and (stream == 0) == (kind >= 2)
    if lawful:
        assert frames.parse(raw) == (kind, flags, stream, length)
        assert frames.pack(kind, flags, stream, length) == raw
    else:
        with pytest.raises(Misbehaviour, match="yamux frame"):
            frames.parse(raw)
