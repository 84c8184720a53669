"""Reads single messages of libp2p protocols whose streams then carry other bytes: not a byte more than the message."""

from __future__ import annotations

from typing import Final, Protocol

from chain.errors import Invalid
from p2p.errors import StreamBroken
from p2p.ports import PeerId

MAX_PREFIX: Final = 3
"""Bytes of a varint length at most."""


class MessageSource(Protocol):
    async def receive_some(self, max_bytes: int) -> bytes: ...


async def read_message(stream: MessageSource, peer: PeerId, limit: int) -> bytes:
    """Reads a body after its varint length. Raises Invalid over the limit, StreamBroken. The caller sets a timeout."""
    length = 0
    for place in range(MAX_PREFIX):
        (byte,) = await _exactly(stream, peer, 1)
        length |= (byte & 0x7F) << 7 * place
        if byte < 0x80 and length <= limit:
            return await _exactly(stream, peer, length)
    raise Invalid(f"a message of {length:,} bytes or more", rule="message-length", hint=f"at most {limit:,}")


async def _exactly(stream: MessageSource, peer: PeerId, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = await stream.receive_some(count - len(data))
        if not part:
            raise StreamBroken(peer, f"ended its stream {count - len(data)} bytes early", rule="message-cut")
        data += part
    return data
