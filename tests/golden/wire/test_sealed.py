"""The bytes of ADR 17. ``sealed.json`` was written from that page with the ``crypto`` module of Node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p2p.host.noise import AES, Cipher

BYTES = {
    name: bytes.fromhex(text)
    for name, text in json.loads(Path(__file__).with_name("sealed.json").read_text()).items()
}  # fmt: skip
KEY = bytes(range(32))


@pytest.mark.parametrize(
    ("name", "before", "messages"),
    [("first", 0, [b"hello"]), ("turn", (1 << 20) - 1, [b"the last of its key", b"the first of the next"])],
)
def test_sealed(name: str, before: int, messages: list[bytes]) -> None:
    assert bytes(Cipher(AES, KEY, before).seal(messages)) == BYTES[name]
    cipher, at = Cipher(AES, KEY, before), 0
    for message in messages:
        end = at + 2 + int.from_bytes(BYTES[name][at : at + 2], "big")
        plain = memoryview(bytearray(len(message)))
        assert cipher.open(memoryview(BYTES[name])[at + 2 : end], plain) == len(message)
        assert plain == message
        at = end
