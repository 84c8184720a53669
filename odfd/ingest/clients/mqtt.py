"""Reads an MQTT session in its own process: writes the messages that the broker kept since the last transaction.

The session has its own client id and outlives each connection. New messages are not acknowledged here: the next session
does so, once the chain has them. A broker sends again each message that was not acknowledged, with the same number and
a mark. The chain has the numbers and digests of the messages of its last transaction: if they come again, they are
acknowledged and not taken twice.
"""

from __future__ import annotations

import hashlib
import ssl
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from chain.errors import Fault, Invalid, Refused, Remote
from odfd.ingest.source_process import SourceJob, SourceResult, run_job, serve

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


_LOOK: Final = 0.05
"""Seconds that one look at the connection lasts."""
_QOS: Final = 1
_REFUSED: Final = 0x80
"""The least code by which a broker refuses a subscription."""


def answer(job: SessionJob) -> SessionResult:
    """Reads the session and writes its messages; a fault becomes an answer."""
    return run_job(job, lambda job: _Session(job).read(), SessionResult, "publish smaller messages")


class _Session:
    """Reads one session over one connection. Blocking; callbacks of the client run within ``loop``."""

    def __init__(self, job: SessionJob) -> None:
        from paho.mqtt.client import Client, MQTTv311
        from paho.mqtt.enums import CallbackAPIVersion

        self._job = job
        self._reader = SessionReader(job.known, job.limit)
        self._fault: Fault | None = None
        self._is_ready = self._is_full = self._is_resumed = False
        self._heard = time.monotonic()
        # No clean session: the broker keeps what comes between pulls. The client would acknowledge what no chain has
        # yet
        # (test_whatever_is_killed_nothing_is_lost_and_nothing_doubled).
        client = Client(CallbackAPIVersion.VERSION2, job.client, False, None, MQTTv311, manual_ack=True)
        if job.username is not None:
            client.username_pw_set(job.username, job.password)
        if job.tls:
            client.tls_set(cert_reqs=ssl.CERT_REQUIRED if job.verified else ssl.CERT_NONE)
            client.tls_insecure_set(not job.verified)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._came
        self._client = client

    def read(self) -> SessionResult:
        """Reads until the session is quiet or the transaction is full. Raises Remote, Refused, Invalid."""
        job, client = self._job, self._client
        client.connect_timeout = job.silence
        try:
            client.connect(job.host, job.port)
            while self._goes_on():
                if (code := client.loop(_LOOK)) != 0 and self._fault is None:
                    raise Remote(f"the broker ended the connection ({int(code)})", rule=RULE, hint="try again later")
            while client.want_write() and self._fault is None:
                client.loop(_LOOK)  # what is acknowledged is sent before the end
            client.disconnect()
        except ssl.SSLCertVerificationError as error:
            raise Refused(
                f"the broker's certificate is not that of {job.host}: {error.verify_message}",
                rule="mqtt-certificate",
                hint="SSL_CERT_FILE of the daemon's environment names authorities of your own",
            ) from error
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise Remote(f"the broker cannot be asked: {said}", rule=RULE, hint="try again later") from error
        if self._fault is not None:
            raise self._fault
        Path(job.target).write_bytes(b"".join(self._reader.lines))
        return self._reader.result(is_resumed=self._is_resumed)

    def _goes_on(self) -> bool:
        if self._fault is not None or self._is_full:
            return False
        quiet = time.monotonic() - self._heard
        if not self._is_ready and quiet > self._job.silence:
            raise Remote(f"the broker said nothing for {quiet:.0f} s", rule=RULE, hint="try again later")
        return not self._is_ready or quiet < self._job.quiet

    def _on_connect(self, client: Any, _data: Any, flags: Any, code: Any, _properties: Any) -> None:
        if code.is_failure:
            self._fault = Refused(
                f"the broker refuses this node: {code}", rule="mqtt-credentials", hint="check user, password and rights"
            )
            return
        self._is_resumed, self._heard = bool(flags.session_present), time.monotonic()
        if self._is_resumed and self._job.known is not None:
            self._is_ready = True  # to subscribe again would bring kept messages again
        else:
            client.subscribe([(topic, _QOS) for topic in self._job.topics])

    def _on_subscribe(self, _client: Any, _data: Any, _number: int, codes: Any, _properties: Any) -> None:
        self._is_ready, self._heard = True, time.monotonic()
        for topic, code in zip(self._job.topics, codes, strict=False):
            if code.value >= _REFUSED:
                self._fault = Refused(f"the broker refuses topic {topic}", rule="mqtt-credentials", hint="its rights?")
            elif code.value < _QOS:
                self._fault = Refused(
                    f"the broker gives topic {topic} at most once, so messages could be lost",
                    rule="mqtt-qos",
                    hint="ask its operator for AtLeastOnce",
                )

    def _came(self, client: Any, _data: Any, message: Any) -> None:
        self._heard = time.monotonic()
        if self._fault is not None or self._is_full:
            return
        packet = Packet(
            number=message.mid if message.qos else 0,
            topic=message.topic,
            payload=message.payload,
            again=bool(message.dup),
            kept=bool(message.retain),
        )
        try:
            fate = self._reader.decide(packet)
        except Fault as fault:
            self._fault = fault
            return
        if fate == "acknowledge":
            client.ack(message.mid, message.qos)
        self._is_full = fate == "full"


def main() -> int:
    """Runs the process. Returns its exit code."""
    return serve(SessionJob, answer)


if __name__ == "__main__":
    sys.exit(main())
