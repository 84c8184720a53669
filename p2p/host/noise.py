"""Implements the noise handshake by suite, and encrypts the connection after it, whole batches of messages at a time.

py-libp2p encrypts and sends one message per call, through four layers that each copy. Here the two cipher keys and the
socket are taken over from its finished handshake; from then on nothing else may use them. Noise specification, section
5.1 (CipherState), libp2p noise specification, "Wire format": ``length u16 · ciphertext``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import trio
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from libp2p.security.noise.patterns import IPattern
from libp2p.security.noise.transport import Transport

from p2p.errors import Misbehaviour
from p2p.ip import Ip, parse_ip
from p2p.pace import LineTraffic

KEY: Final = 32
TAG: Final = 16
LENGTH: Final = 2
RECEIVE: Final = 256 * 1024
"""Bytes requested from the socket at once: four full noise messages."""
MAX_SEALED: Final = LENGTH + 65_535
"""Bytes of one message on the wire."""
_LAST: Final = (1 << 64) - 1
"""The count that no message uses: encrypting with it gives the next key."""
Aead: TypeAlias = AESGCM | ChaCha20Poly1305
_CPUINFO: Final = Path("/proc/cpuinfo")
_MULTIPLIES: Final = {"pclmulqdq", "pmull"}
"""The names, on x86 and ARM, of the instruction that GCM's checksum needs."""
UNSENT: Final = 256 * 1024
"""Bytes that the kernel holds beyond those in flight: one batch, so that the next is encrypted meanwhile.

With 256 connections whose peers read nothing that is 64 MiB of kernel memory.
"""
_NOTHING: Final = memoryview(b"")


@dataclass(frozen=True)
class Suite:
    """A cipher suite of connections: its handshake and its cipher.

    ChaCha20-Poly1305 is fixed by libp2p's ``/noise`` and used by all. A processor with instructions for AES encrypts
    with AES-256-GCM in a quarter of the time, so such a machine offers the same handshake with it first, under a
    protocol name of its own (ADR 17). Computed in software, AES gains nothing and its timing leaks the key; there it is
    not offered. Noise specification, sections 12.3 (ChaChaPoly) and 12.4 (AESGCM).
    """

    protocol: str
    """The protocol name on which the two ends agree by multistream-select."""
    noise: bytes
    """The handshake's name in the Noise specification."""
    aead: Callable[[bytes], Aead]
    order: Literal["little", "big"]
    """Byte order of the count in a nonce."""
    lifetime: int
    """Messages after which both ends change the key (``REKEY``, section 4.2)."""

    def nonce(self, count: int) -> bytes:
        return b"\0\0\0\0" + count.to_bytes(8, self.order)


CHACHA: Final = Suite("/noise", b"Noise_XX_25519_ChaChaPoly_SHA256", ChaCha20Poly1305, "little", 1 << 64)
AES: Final = Suite("/odf/noise-aes/1", b"Noise_XX_25519_AESGCM_SHA256", AESGCM, "big", 1 << 20)
"""A key's million messages are at most 64 GiB, 2**32 blocks of AES: an attacker's advantage stays below 2**-64."""
_SUITES: Final = {suite.noise: suite for suite in (AES, CHACHA)}


class Handshake(Transport):  # type: ignore[misc]
    """py-libp2p's handshake, which proves the peer's key, with the ciphers of a suite."""

    def __init__(self, pair: Any, static: Any, suite: Suite) -> None:
        super().__init__(pair, noise_privkey=static)
        self._suite = suite

    def get_pattern(self) -> IPattern:
        pattern = super().get_pattern()
        pattern.protocol_name = self._suite.noise
        return pattern


class Cipher:
    """Encrypts or decrypts one direction: a key, and the number of messages so far,
    ``count`` of them before this object."""

    def __init__(self, suite: Suite, key: bytes, count: int = 0) -> None:
        self._suite = suite
        self._aead = suite.aead(key)
        self._count = count

    def _next(self) -> tuple[Aead, bytes]:
        """Returns the cipher with the key of the next message, and its nonce."""
        # The count goes on: REKEY changes the key alone (test_a_key_seals_so_many_messages_and_the_next_comes_of_it).
        if self._count and self._count % self._suite.lifetime == 0:
            self._aead = self._suite.aead(self._aead.encrypt(self._suite.nonce(_LAST), bytes(KEY), None)[:KEY])
        nonce = self._suite.nonce(self._count)
        self._count += 1
        return self._aead, nonce

    def seal(self, messages: Sequence[bytes | memoryview]) -> bytearray:
        """Encrypts messages of at most 65,519 bytes each into one buffer for the socket."""
        wire = bytearray(sum(map(len, messages)) + (LENGTH + TAG) * len(messages))
        view = memoryview(wire)
        at = 0
        for message in messages:
            size = len(message) + TAG
            wire[at : at + LENGTH] = size.to_bytes(LENGTH, "big")
            at += LENGTH
            aead, nonce = self._next()
            aead.encrypt_into(nonce, message, None, view[at : at + size])
            at += size
        return wire

    def open(self, sealed: memoryview, plain: memoryview) -> int:
        """Decrypts into ``plain``, which must be as long; returns the plaintext's size.
        Raises Misbehaviour if it does not open."""
        size = max(0, len(sealed) - TAG)
        aead, nonce = self._next()
        try:
            aead.decrypt_into(nonce, sealed, None, plain[:size])
        except InvalidTag as error:
            raise Misbehaviour("", "a sealed message does not open", rule="noise-tag") from error
        return size


class Scratch:
    """A buffer shared by all connections of a host, in which received bytes are decrypted; they do not stay in it."""

    def __init__(self) -> None:
        self.sealed = memoryview(bytearray(MAX_SEALED + RECEIVE))
        self.plain = memoryview(bytearray(MAX_SEALED + RECEIVE))


class Unsealer:
    """Decrypts received bytes, split anywhere. Holds at most one unfinished message (64 KiB)."""

    def __init__(self, cipher: Cipher, scratch: Scratch) -> None:
        self._cipher = cipher
        self._scratch = scratch
        self._rest = b""

    def room(self) -> memoryview:
        """Returns the buffer for the next received bytes, up to ``RECEIVE`` of them."""
        return self._scratch.sealed[len(self._rest) :][:RECEIVE]

    def take(self, count: int) -> memoryview:
        """Decrypts the messages that ``count`` bytes in ``room`` complete.
        Valid until the next use. Raises Misbehaviour."""
        sealed, plain = self._scratch.sealed[: len(self._rest) + count], self._scratch.plain
        sealed[: len(self._rest)] = self._rest
        at = filled = 0
        while len(sealed) - at >= LENGTH:
            end = at + LENGTH + int.from_bytes(sealed[at : at + LENGTH], "big")
            if end > len(sealed):
                break
            filled += self._cipher.open(sealed[at + LENGTH : end], plain[filled:])
            at = end
        self._rest = sealed[at:].tobytes()
        return plain[:filled]


def take_over(session: Any) -> tuple[trio.SocketStream, Cipher, Cipher, bytes]:
    """Takes over py-libp2p's ``SecureSession``: its socket, the ciphers out and in, and the plaintext read already."""
    packets = session.conn.read_writer
    socket = packets.read_write_closer.stream.stream
    assert isinstance(socket, trio.SocketStream), f"noise over {type(socket).__name__}, not a TCP socket"
    protocol = session.conn.noise_state.noise_protocol
    suite = _SUITES[protocol.name]
    out, into = protocol.cipher_state_encrypt, protocol.cipher_state_decrypt
    # A peer may send right after its last handshake message: such bytes lie in the library's buffer already.
    return socket, Cipher(suite, out.k, out.n), Cipher(suite, into.k, into.n), session._drain(None)


def computes_aes(cpuinfo: str) -> bool:
    """Whether the processor has AES instructions, according to the kernel's listing."""
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    found = next((said.split() for name, _, said in lines if name.strip() in ("flags", "Features")), [])
    return "aes" in found and not _MULTIPLIES.isdisjoint(found)


@cache
def list_suites() -> Sequence[Suite]:
    """Lists the ciphers, best first; a machine of unknown capabilities offers the common one."""
    try:
        cpuinfo = _CPUINFO.read_text(errors="replace")
    except OSError:
        cpuinfo = ""
    return (AES, CHACHA) if computes_aes(cpuinfo) else (CHACHA,)


class NoiseStream(trio.abc.AsyncResource):
    """Encrypted messages on a socket, decrypted into one buffer that all connections share.

    Uses the socket directly: trio's stream has checks at each call, and reads 16 KiB at a time, so that a MiB cost ten
    turns of the event loop. One task may send at a time, and one receive. All methods raise OSError or one of trio's
    errors if the socket breaks.
    """

    def __init__(self, stream: trio.SocketStream, out: Cipher, into: Unsealer, traffic: LineTraffic) -> None:
        self._stream = stream
        self._traffic = traffic
        self._out, self._into = out, into
        self._unsent = _NOTHING
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            with suppress(OSError):
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)

    @property
    def local_ip(self) -> Ip | None:
        """The address that the socket is bound to; ``None`` for another kind of socket, or a closed one."""
        with suppress(OSError, ValueError):
            name = self._stream.socket.getsockname()
            return parse_ip(name[0]) if isinstance(name, tuple) else None
        return None

    @property
    def has_unsent(self) -> bool:
        """Whether there are encrypted bytes that the socket has not taken yet."""
        return bool(self._unsent)

    def send_now(self, messages: Sequence[bytes | memoryview]) -> None:
        """Sends as much as the socket takes; the rest waits for ``wait_for_room``. Never waits."""
        wire = self._out.seal(messages)
        self._unsent = memoryview(self._unsent.tobytes() + wire if self._unsent else wire)
        self._push()

    async def wait_for_room(self) -> None:
        """Waits until the socket has taken all bytes and accepts more. When cancelled, the rest stays queued."""
        while True:
            await trio.lowlevel.wait_writable(self._socket)
            if not self._unsent:
                return
            self._push()

    def _push(self) -> None:
        with suppress(BlockingIOError):
            while self._unsent:
                written = os.write(self._socket, self._unsent)
                self._traffic.went(written, trio.current_time())
                self._unsent = self._unsent[written:]

    async def receive(self) -> memoryview:
        """Receives decrypted bytes; empty at the end. Valid until the caller waits. Raises Misbehaviour."""
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            with suppress(BlockingIOError):
                came = os.readv(self._socket, [self._into.room()])
                self._traffic.came(came, trio.current_time())
                opened = self._into.take(came)
                if opened or not came:
                    return opened

    @property
    def _socket(self) -> int:
        """Returns the socket's number. Raises ClosedResourceError,
        since trio treats that of a closed socket as a bug."""
        number: int = self._stream.socket.fileno()
        if number < 0:
            raise trio.ClosedResourceError("the socket was closed here")
        return number

    async def aclose(self) -> None:
        await self._stream.aclose()
