"""The sealed side of a connection after the noise handshake: whole batches of messages at a time.

py-libp2p seals and sends one message per call, through four layers that each copy. Here the two cipher keys and the
socket are taken over from its finished handshake; from then on nobody else may use them. Noise specification,
section 5.1 (CipherState), libp2p noise specification, "Wire format": ``length u16 · ciphertext``.
"""

from __future__ import annotations

from typing import Any

import trio
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from p2p.errors import Violation

TAG = 16
LENGTH = 2


class Cipher:
    """One direction: a key and the count of messages under it."""

    def __init__(self, key: bytes, count: int) -> None:
        self._aead = ChaCha20Poly1305(key)
        self._count = count

    def _nonce(self) -> bytes:
        nonce = b"\0\0\0\0" + self._count.to_bytes(8, "little")
        self._count += 1
        return nonce

    def seal(self, messages: list[bytes]) -> bytearray:
        """One buffer for the socket. Each message is at most 65,519 bytes."""
        wire = bytearray(sum(map(len, messages)) + (LENGTH + TAG) * len(messages))
        view = memoryview(wire)
        at = 0
        for message in messages:
            size = len(message) + TAG
            wire[at : at + LENGTH] = size.to_bytes(LENGTH, "big")
            at += LENGTH
            self._aead.encrypt_into(self._nonce(), message, None, view[at : at + size])
            at += size
        return wire

    def open(self, sealed: memoryview) -> bytes:
        """Raises Violation when the bytes were not sealed by the holder of the key, in this order."""
        try:
            return self._aead.decrypt(self._nonce(), sealed, None)
        except InvalidTag as error:
            raise Violation("", "a sealed message does not open", rule="noise-tag") from error


class Unsealer:
    """Received bytes, split anywhere, to messages. Holds at most one unfinished message (64 KiB)."""

    def __init__(self, cipher: Cipher) -> None:
        self._cipher = cipher
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that ``data`` completes. Raises Violation."""
        view = memoryview(self._rest + data if self._rest else data)
        messages = []
        at = 0
        while len(view) - at >= LENGTH:
            end = at + LENGTH + int.from_bytes(view[at : at + LENGTH], "big")
            if end > len(view):
                break
            messages.append(self._cipher.open(view[at + LENGTH : end]))
            at = end
        self._rest = bytes(view[at:])
        return messages


def take_over(session: Any) -> tuple[trio.SocketStream, Cipher, Unsealer, bytes]:
    """Socket, both ciphers and the plaintext that is already read, out of py-libp2p's ``SecureSession``."""
    packets = session.conn.read_writer
    socket = packets.read_write_closer.stream.stream
    assert isinstance(socket, trio.SocketStream), f"noise over {type(socket).__name__}, not a TCP socket"
    protocol = session.conn.noise_state.noise_protocol
    out, into = protocol.cipher_state_encrypt, protocol.cipher_state_decrypt
    return socket, Cipher(out.k, out.n), Unsealer(Cipher(into.k, into.n)), session._drain(None)
