"""Decides which messages of an MQTT session are new, and declares the request to the process that reads it. Pure.

A broker sends again each message that was not acknowledged, with the same number and a mark. The chain has the numbers
and digests of the messages of its last transaction: if they come again, they are acknowledged and not taken twice.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal

import msgspec

from chain.errors import Invalid
from odfd.ingest.source_process import SourceJob, SourceResult

RULE: Final = "source-mqtt"
MAX_MESSAGES: Final = 100
"""Messages of one transaction: the block holds a number and a digest of each."""
_Digest = Annotated[str, msgspec.Meta(max_length=16)]


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of the last transaction, as packet numbers and digests."""

    taken: Annotated[tuple[tuple[int, _Digest], ...], msgspec.Meta(max_length=MAX_MESSAGES)]

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


def decode_taken(text: str) -> Taken:
    """Decodes the source state of a session. Raises Invalid."""
    try:
        return msgspec.json.decode(text, type=Taken)
    except msgspec.DecodeError as error:
        raise Invalid(f"what the chain knows of the session cannot be read: {error}", rule=RULE) from error


class SessionJob(SourceJob, frozen=True, kw_only=True):
    """The request to the process that reads a session."""

    host: str
    port: int
    tls: bool
    verified: bool
    """Whether the broker's certificate is checked, if TLS is used."""
    client: str
    username: str | None
    password: str | None
    topics: tuple[str, ...]
    known: Taken | None
    """The messages of the last transaction; ``None``: no message was ever taken."""
    quiet: float
    """Seconds without a message after which the read ends."""
    silence: float


class SessionResult(SourceResult, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of the process that reads a session."""

    messages: int = 0
    taken: Taken | None = None
    is_resumed: bool = False
    """Whether the broker knew the session already."""
    rule: str = RULE


class Packet(msgspec.Struct, frozen=True, kw_only=True):
    """One message as the broker sent it."""

    number: int
    """Packet number; 0: the message was published at most once, and does not come again."""
    topic: str
    payload: bytes
    again: bool = False
    """Whether it was sent before, in this session."""
    kept: bool = False
    """Whether the broker retained it for new subscribers."""


Fate = Literal["acknowledge", "take", "full"]


class SessionReader:
    """Sorts messages as they arrive. ``lines`` are the messages of the transaction."""

    def __init__(self, known: Taken | None, limit: int) -> None:
        self._known = set() if known is None else set(known.taken)
        self._limit = limit
        self._kept: set[tuple[str, str]] = set()
        self._taken: list[tuple[int, str]] = []
        self.lines: list[bytes] = []
        self.size = 0

    def decide(self, packet: Packet) -> Fate:
        """Decides how to treat a message; one that is taken is acknowledged by a later session. Raises Invalid."""
        digest = hashlib.sha3_256(packet.topic.encode() + b"\0" + packet.payload).hexdigest()[:16]
        # By the digest too: a broker uses the number of an acknowledged message for another one.
        if packet.again and (packet.number, digest) in self._known:
            return "acknowledge"
        # A retained message may come once for each filter that it fits (MQTT 3.1.1, 3.3.5).
        if packet.kept and (packet.topic, digest) in self._kept:
            return "acknowledge"
        line = packet.payload.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"
        if not packet.payload.strip():
            raise Invalid(
                f"a message of {packet.topic} is empty, which is no JSON", rule=RULE, hint="publish documents"
            )
        if len(line) > self._limit:
            raise Invalid(f"a message of {packet.topic} is larger than {self._limit:,} bytes", rule="max-source-bytes")
        if len(self.lines) == MAX_MESSAGES or self.size + len(line) > self._limit:
            return "full"
        if packet.kept:
            self._kept.add((packet.topic, digest))
        if packet.number:
            self._taken.append((packet.number, digest))
        self.lines.append(line)
        self.size += len(line)
        return "take"

    def result(self, *, is_resumed: bool) -> SessionResult:
        digest = hashlib.sha3_256(b"".join(self.lines)).hexdigest()
        taken = Taken(taken=tuple(self._taken))
        return SessionResult(messages=len(self.lines), taken=taken, is_resumed=is_resumed, digest=digest)
