"""Reads an MQTT session in its own process: writes the messages that the broker kept since the last transaction.

The session has its own client id and outlives each connection. New messages are not acknowledged here: the next session
does so, once the chain has them.
"""

from __future__ import annotations

import ssl
import sys
import time
from pathlib import Path
from typing import Any, Final

from chain.errors import Fault, Refused, Remote
from odfd.ingest.brokers.mqtt_session import RULE, Packet, SessionJob, SessionReader, SessionResult
from odfd.ingest.source_process import run_job, serve

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
                f"the broker refuses this node: {code}", rule="mqtt-credentials", hint="user, password, rights?"
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
                    hint="ask whoever runs it for AtLeastOnce",
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
